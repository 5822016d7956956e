"""Matplotlib figures as inline SVG that takes its fonts and its colours, light or dark, from the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, GRID = "#24292f", "#d5dae0"
# Okabe and Ito's colours, which colour-blind readers can tell apart. Without the yellow: it is too pale on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "feddrm",
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "legend.frameon": False,
    "boxplot.boxprops.color": INK,
    "boxplot.whiskerprops.color": INK,
    "boxplot.capprops.color": INK,
    "boxplot.medianprops.color": SERIES[1],
}
_PAGE_COLOURS = {INK: "currentColor", GRID: "var(--grid)"} | {c: f"var(--s{i})" for i, c in enumerate(SERIES)}
_TAG = re.compile(r"<[^>]*>")
_COLOUR = re.compile("|".join(_PAGE_COLOURS))


@dataclass(frozen=True)
class InlineSvg:
    """What a page's template needs for one ``svg`` element."""

    key: str  # begins every id, so that ids of different figures differ
    title: str
    description: str
    view_box: str
    width: int  # in CSS pixels
    body: str  # markup: everything after the opening tag
    draw: Callable[[], Figure]  # the same figure again, for a file


class Picture(NamedTuple):
    """A figure and the sentence that says what it shows."""

    svg: InlineSvg
    caption: str


def inline_svg(draw: Callable[[], Figure], key: str, title: str, description: str) -> InlineSvg:
    """Draw a figure in the page's style and take its SVG apart."""
    out = io.StringIO()
    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        # The reader's browser chooses the fonts, so missing letters in Matplotlib's own font do not matter.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure = draw()
        figure.set_dpi(180)
        # savefig would draw everything twice: once more, unseen, to find the layout.
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})  # type: ignore[no-untyped-call]
    text = out.getvalue()
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.S)
    start = _TAG.match(text)
    assert start is not None
    view_box = re.search(r'viewBox="([^"]*)"', start.group())
    assert view_box is not None
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    body = _TAG.sub(lambda tag: _adapt(tag.group(), key, used), text[start.end() :]).strip()
    body = re.sub(r">\s*\n\s*<", "><", body)
    return InlineSvg(key, title, description, view_box.group(1), round(figure.get_figwidth() * 96), body, draw)


def _adapt(tag: str, key: str, used: set[str]) -> str:
    """One tag with the page's colours and with prefixed ids; ids that nothing refers to are removed."""
    tag = tag.replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m.group(1)}"' if m.group(1) in used else "", tag)
    tag = re.sub(r'(href="|url\()#', rf"\g<1>#{key}-", tag)
    return _COLOUR.sub(lambda m: _PAGE_COLOURS[m.group()], tag)
