"""Tests of inline SVG: ids of its own, colours of the page, nothing to fetch."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from matplotlib.figure import Figure

from feddrm.report.svg import SERIES, InlineSvg, inline_svg


def line() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [0, 1], color=SERIES[0], marker="o", label="<b>")
    figure.axes[0].set_title("<b>名</b>")
    return figure


def drawn(key: str) -> InlineSvg:
    return inline_svg(line, key, "title", "description")


def test_the_body_is_well_formed_and_shows_names_as_text() -> None:
    svg = drawn("a")
    root = ET.fromstring(f"<svg>{svg.body}")
    assert "<b>名</b>" in [element.text for element in root.iter("text")]
    assert svg.width == 192
    assert svg.view_box == "0 0 144 72"


def test_figures_of_one_page_share_no_ids() -> None:
    ids = [set(re.findall(r' id="([^"]*)"', drawn(key).body)) for key in ("a", "b")]
    assert ids[0]
    assert all(name.startswith("a-") for name in ids[0])
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', drawn("a").body)) == ids[0]


def test_colours_are_those_of_the_page() -> None:
    body = drawn("a").body
    assert "var(--s0)" in body
    assert SERIES[0] not in body
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", body)
