"""A notebook as a page: its text, its code, what was printed, and its pictures as files beside the page."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def page_of(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """The page's Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        if printed := "".join(_text(output) for output in cell.get("outputs", ())).rstrip():
            parts.append(f"```text\n{printed}\n```")
        for output in cell.get("outputs", ()):
            if picture := output.get("data", {}).get("image/png"):
                name = f"{notebook.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(picture))
                parts.append(f"![What the code above draws]({name})")
    return "\n\n".join(parts) + "\n", pictures


def _text(output: dict[str, Any]) -> str:
    """What a cell has printed, or its last value; a picture's own text is left out."""
    data = output.get("data", {})
    return "".join(output.get("text", "" if "image/png" in data else data.get("text/plain", "")))
