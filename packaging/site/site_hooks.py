"""What MkDocs calls while it builds the site: pages from other files, from the program itself, and formulas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import unescape
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from cli_page import command_reference
from feddrm.io.page_files import ICON
from http_page import documents, http_reference
from linked_files import DOCS, INDEX, ROOT, folder_page, outside, place, rewritten
from notebook_page import page_of

# A page in docs/ may have this line. The program's own text takes its place.
MARK = "<!-- generated when the site is built -->"
GENERATED = {"reference/cli.md": command_reference, "reference/http.md": http_reference}
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put files in the place of patterns in the navigation; a section without files is left out."""
    sections = [(title, list(_expanded(entries))) for entry in config.nav or [] for title, entries in entry.items()]
    config.nav = [{title: entries} for title, entries in sections if entries]
    return config


def _expanded(entries: Iterable[Any]) -> Iterable[Any]:
    for entry in entries:
        if "*" in entry:
            yield from sorted(place(path) for path in DOCS.glob(entry))
        else:
            yield entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of notebooks, of the project's own files, and everything outside docs/ that a page names."""

    def add(uri: str, content: str | bytes, level: InclusionLevel = InclusionLevel.UNDEFINED) -> None:
        files.append(File.generated(config, uri, content=content, inclusion=level))

    for notebook in sorted(DOCS.glob("notebooks/*.ipynb")):
        text, pictures = page_of(notebook)
        add(place(notebook), rewritten(text, notebook) + f"\n[This page as a notebook]({notebook.name})\n")
        for name, picture in pictures.items():
            add(f"notebooks/{name}", picture)
    add(ICON.name, ICON.read_bytes(), InclusionLevel.NOT_IN_NAV)
    for name, document in documents().items():
        add(f"reference/{name}.json", json.dumps(document, indent=2))
    named = {uri for entry in config.nav or [] for entries in entry.values() for uri in entries if isinstance(uri, str)}
    project = {ROOT / uri for uri in named if (ROOT / uri).exists()}
    for path in sorted(project | outside([*DOCS.rglob("*.md"), *project])):
        level = InclusionLevel.UNDEFINED if path in project else InclusionLevel.NOT_IN_NAV
        if path.is_dir():
            add(place(path), rewritten(folder_page(path), path / INDEX), level)
        elif path.suffix == ".md":
            add(place(path), rewritten(path.read_text(), path), level)
        else:
            add(place(path), path.read_bytes(), level)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the links of a page in docs/ into places of the site, and put in what the program says."""
    uri = page.file.src_uri
    if page.file.generated_by is not None:
        return markdown
    if uri in GENERATED:
        markdown = markdown.replace(MARK, GENERATED[uri]())
    return rewritten(markdown, DOCS / uri)


def on_page_content(html: str, **_: object) -> str:
    """Turn formulas into MathML, which browsers show without a script."""
    return _FORMULA.sub(lambda match: _math(unescape(match[2]), block=match[1] == "div"), html)


def _math(formula: str, *, block: bool) -> str:
    return str(convert(formula.strip(), display="block" if block else "inline"))
