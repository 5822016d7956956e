"""Matplotlib figures as SVG inside a page: the page's text and colours, light and dark, nothing fetched."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK, GRID = "#24292f", "#d5dae0"
# Okabe and Ito's colours, told apart by everyone; the yellow is left out, for it vanishes on paper.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "feddrm",
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
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
}
_PAGE_COLOURS = {INK: "currentColor", GRID: "var(--grid)"} | {c: f"var(--s{i})" for i, c in enumerate(SERIES)}
_TAG = re.compile(r"<[^>]*>")
_COLOUR = re.compile("|".join(_PAGE_COLOURS))


def inline_svg(draw: Callable[[], Figure], key: str, title: str, description: str) -> str:
    """Draw a figure and return an ``svg`` element; ``key`` keeps its ids apart from other figures'."""
    out = io.StringIO()
    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        # The reader's fonts draw the letters, so it does not matter which ones Matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure = draw()
        figure.savefig(out, format="svg", dpi=180, transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.S)
    start = _TAG.match(text)
    assert start is not None
    view = re.search(r'viewBox="([^"]*)"', start.group())
    assert view is not None
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    body = _TAG.sub(lambda tag: _adapt(tag.group(), key, used), text[start.end() :]).strip()
    body = re.sub(r">\s*\n\s*<", "><", body)
    width = round(figure.get_figwidth() * 96)
    return (
        f'<svg role="img" aria-labelledby="{key}-title {key}-desc" viewBox="{view.group(1)}" '
        f'style="max-width:{width}px;--width:{width}px"><title id="{key}-title">{escape(title)}</title>'
        f'<desc id="{key}-desc">{escape(description)}</desc>{body}'
    )


def _adapt(tag: str, key: str, used: set[str]) -> str:
    """One tag: the page's colours, ids that are its own, and only those that something points to."""
    tag = tag.replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m.group(1)}"' if m.group(1) in used else "", tag)
    tag = re.sub(r'(href="|url\()#', rf"\g<1>#{key}-", tag)
    return _COLOUR.sub(lambda m: _PAGE_COLOURS[m.group()], tag)
