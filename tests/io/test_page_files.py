"""The files that all web pages share."""

from __future__ import annotations

import re
from pathlib import Path

import feddrm.deploy.watch
import feddrm.serve.console
from feddrm.io.page_files import SECURITY_POLICY, content_type, page_files


def test_a_page_has_the_shared_files_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / ".index.html.swp").write_text("not a page's file")
    assert sorted(page_files(tmp_path)) == ["console.css", "index.html", "parts.js"]
    assert [content_type(name) for name in ("a.html", "a.css", "a.js")] == ["text/html", "text/css", "text/javascript"]


def test_the_pages_load_nothing_from_elsewhere() -> None:
    for package in (feddrm.deploy.watch, feddrm.serve.console):
        files = page_files(Path(package.__path__[0]) / "static")
        assert len(files) > 3
        for name, content in files.items():
            assert not re.search(rb"(src|href|url)\s*[=(]\s*['\"]?(\w+:)?//", content), name
            assert not re.search(rb"fetch\(\s*['\"`](\w+:)?//", content), name
    assert "'unsafe" not in SECURITY_POLICY
