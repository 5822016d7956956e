"""The Jinja2 environment of all HTML that reports and tables consist of."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from feddrm.io.page_files import icon_url

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,  # names of clients, classes and runs come from users' files
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["icon_url"] = icon_url()
