"""What all web pages of feddrm share: look, small parts of scripts, explained terms, and what a page may load."""

from __future__ import annotations

import json
from pathlib import Path

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SHARED = Path(__file__).parent / "static"
# What pages explain in tooltips, by term. The meanings are those of docs/glossary.md; a test compares them.
TERMS: dict[str, str] = json.loads((_SHARED / "terms.json").read_text(encoding="utf-8"))


def page_files(folder: Path) -> dict[str, bytes]:
    """The files of a page by name: the shared ones, and those in its folder."""
    paths = [path for place in (_SHARED, folder) for path in sorted(place.iterdir())]
    return {path.name: path.read_bytes() for path in paths if path.suffix in TYPES}


def content_type(name: str) -> str:
    """The content type of a page's file."""
    return TYPES[Path(name).suffix]
