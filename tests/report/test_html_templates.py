"""Tests of the template environment: every template is found, compiles and escapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

import feddrm.report
from feddrm.report.html_templates import TEMPLATES

FOLDER = Path(feddrm.report.__file__).parent / "templates"


def test_every_template_compiles() -> None:
    names = sorted(path.name for path in FOLDER.iterdir())
    assert names == sorted(TEMPLATES.list_templates())
    assert {"report.html.j2", "table.html.j2", "report.css"} <= set(names)
    for name in names:
        TEMPLATES.get_template(name)


def test_values_are_escaped_and_missing_ones_are_errors() -> None:
    assert TEMPLATES.from_string("<p>{{ name }}</p>").render(name="<b>\"'") == "<p>&lt;b&gt;&#34;&#39;</p>"
    with pytest.raises(UndefinedError):
        TEMPLATES.from_string("{{ name }}").render()


def test_only_svg_is_inserted_without_escaping() -> None:
    unescaped = [
        line.strip() for path in FOLDER.glob("*.j2") for line in path.read_text().splitlines() if "|safe" in line
    ]
    assert unescaped == ["{{- svg.body|safe }}<figcaption>{{ picture.caption }}</figcaption></figure>"]
