"""The files that all web pages share."""

from __future__ import annotations

import re
from pathlib import Path

import feddrm.deploy.watch
import feddrm.serve.console
from feddrm.io.page_files import SECURITY_POLICY, TERMS, content_type, page_files

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


def glossary_meanings(text: str) -> dict[str, str]:
    """The meaning of every bold term: the sentences from the one that names it up to the one that names another."""
    meanings: dict[str, str] = {}
    for head, cell in re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", text, flags=re.MULTILINE):
        terms = [head]
        for place, sentence in enumerate(re.split(r"(?<=[.!?]) (?=[A-Z0-9*`(])", cell)):
            named = re.findall(r"\*\*(.+?)\*\*", sentence)
            terms = named if place and named else [*terms, *named]
            for term in terms:
                meanings[term] = f"{meanings.get(term, '')} {re.sub('[*`]', '', sentence)}".strip()
    return meanings


def test_the_terms_of_tooltips_mean_what_the_glossary_says() -> None:
    assert glossary_meanings("| **a** | An `A`. It is. A **b** or **c** is. So. |") == {
        "a": "An A. It is.",
        **dict.fromkeys(("b", "c"), "A b or c is. So."),
    }
    meanings = {term.lower(): meaning for term, meaning in glossary_meanings(GLOSSARY.read_text()).items()}
    assert {term: meanings.get(term.lower()) for term in TERMS} == TERMS


def test_a_page_has_the_shared_files_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / ".index.html.swp").write_text("not a page's file")
    assert sorted(page_files(tmp_path)) == ["console.css", "icon.svg", "index.html", "parts.js", "terms.json"]
    assert [content_type(name) for name in ("a.html", "a.css", "a.js")] == ["text/html", "text/css", "text/javascript"]


def test_the_pages_load_nothing_from_elsewhere() -> None:
    for package in (feddrm.deploy.watch, feddrm.serve.console):
        files = page_files(Path(package.__path__[0]) / "static")
        assert len(files) > 3
        icon = re.search(rb'<link rel="icon" href="(?:console/)?([^"]+)">', files["index.html"])
        assert icon is not None
        assert content_type(icon[1].decode()) == "image/svg+xml"
        assert icon[1].decode() in files
        for name, content in files.items():
            assert not re.search(rb"(src|href|url)\s*[=(]\s*['\"]?(\w+:)?//", content), name
            assert not re.search(rb"fetch\(\s*['\"`](\w+:)?//", content), name
    assert "'unsafe" not in SECURITY_POLICY
