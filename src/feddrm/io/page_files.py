"""What all web pages of feddrm share: look, small parts of scripts, explained terms, and what a page may load."""

from __future__ import annotations

import base64
import json
from pathlib import Path

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SHARED = Path(__file__).parent / "static"
ICON = _SHARED / "icon.svg"
# What pages explain in tooltips, by term. The meanings are those of docs/glossary.md; a test compares them.
TERMS: dict[str, str] = json.loads((_SHARED / "terms.json").read_text(encoding="utf-8"))


def page_files(folder: Path) -> dict[str, bytes]:
    """The files of a page by name: the shared ones, and those in its folder."""
    paths = [path for place in (_SHARED, folder) for path in sorted(place.iterdir())]
    return {path.name: path.read_bytes() for path in paths if path.suffix in TYPES}


def icon_url() -> str:
    """The icon as a URL that holds it, for a page that is one file."""
    return f"data:{TYPES['.svg']};base64,{base64.b64encode(ICON.read_bytes()).decode()}"


def content_type(name: str) -> str:
    """The content type of a page's file."""
    return TYPES[Path(name).suffix]
