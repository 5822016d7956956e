"""Writes figures to PNG, SVG and PDF files."""

from __future__ import annotations

import io
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

from feddrm.errors import SettingError
from feddrm.io.atomic import write_together

FORMATS = (".png", ".svg", ".pdf")
# Fonts for names in other scripts. Matplotlib draws each letter with the first font that has it.
FALLBACKS = (
    *(f"Noto Sans CJK {place}" for place in ("JP", "SC", "TC", "KR")),
    *("Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)


def check_figure_path(path: Path) -> None:
    """Refuse a path that could not be written, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write a picture to '{path}': end its name in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise SettingError(f"folder '{path.parent}' does not exist: create it or choose another --out")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the whole file or nothing. Warns, in one line, if no installed font has some of the letters."""
    write_together({path: figure_bytes(figure, path)})


def figure_bytes(figure: Figure, path: Path) -> bytes:
    """The content of the file ``path``, whose ending says in which format. Warns as above."""
    out = io.BytesIO()
    style: dict[Any, Any] = {
        "svg.hashsalt": "feddrm",  # the same figure gives the same bytes
        "svg.fonttype": "none",  # the reader's fonts draw the letters
        "pdf.fonttype": 42,
    }
    kind = path.suffix[1:].lower()
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)  # no date either
    with matplotlib.rc_context(style), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="Glyph .* missing from")
        for text in figure.findobj(Text):
            text.set_fontfamily(_font_families())
        figure.savefig(out, format=kind, dpi=150, metadata=date)
    if kind != "svg" and any("missing from" in str(warning.message) for warning in caught):
        print(
            f"feddrm: warning: {path} shows boxes for letters that no font here has: "
            "install one that has them (say, Noto Sans CJK), or write .svg",
            file=sys.stderr,
        )
    return out.getvalue()


@cache
def _font_families() -> list[str]:
    """Matplotlib's own font, then the installed fallbacks."""
    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(name for name in FALLBACKS if name in installed)]
