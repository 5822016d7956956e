"""Pictures of a federation, after the paper's figures: the shift grid and the label heat map."""

from __future__ import annotations

import io
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from feddrm.data import Federation
from feddrm.data.summary import SAMPLES, DatasetSummary
from feddrm.errors import SettingError
from feddrm.io.atomic import write_together

FORMATS = (".png", ".svg", ".pdf")
MOST_NUMBERS = 24  # classes beyond this get colours only
MOST_COLUMNS = 60  # columns beyond this get no names
LONGEST = 28  # letters of a name in a picture
# For names in other scripts; Matplotlib takes the first that has a letter.
FALLBACKS = (
    *(f"Noto Sans CJK {place}" for place in ("JP", "SC", "TC", "KR")),
    *("Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)


def federation_figure(federation: Federation) -> Figure:
    """Left: how every client sees. Right: how many samples of each class it holds."""
    portrait = DatasetSummary.of(federation)
    left, right = _view_width(portrait), _label_width(portrait)
    figure = Figure(figsize=(left + right + 3.0, _height(portrait)), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=(left, right))
    draw_view(axes[0], portrait)
    draw_heat_map(axes[1], portrait)
    title = f"{portrait.name}: {int(portrait.sizes.sum())} training samples at {len(portrait.names)} clients"
    figure.suptitle(title, parse_math=False)
    return figure


def view_figure(portrait: DatasetSummary) -> Figure:
    """How every client sees, alone."""
    figure = Figure(figsize=(_view_width(portrait) + 1.5, _height(portrait)), layout="constrained")
    draw_view(figure.subplots(), portrait)
    return figure


def label_figure(portrait: DatasetSummary) -> Figure:
    """How many samples of each class every client holds, alone."""
    figure = Figure(figsize=(_label_width(portrait) + 1.5, _height(portrait)), layout="constrained")
    draw_heat_map(figure.subplots(), portrait)
    return figure


def draw_view(axes: Axes, portrait: DatasetSummary) -> None:
    """Pictures where samples are pictures, column means where they are rows."""
    if portrait.gallery is not None:
        draw_shift_grid(axes, portrait)
    else:
        draw_column_means(axes, portrait)


def draw_shift_grid(axes: Axes, portrait: DatasetSummary) -> None:
    """One row per client: the same samples under every client's shift, or its own where there is none."""
    grid = portrait.gallery
    assert grid is not None
    m, k, c, height, width = grid.shape
    ink = c == 1 and portrait.same_samples  # the digits are stored as ink, X-rays are not: show digits dark on light
    paper = 0 if ink else 255
    canvas = np.full((m * (height + 1) - 1, k * (width + 1) - 1, c), paper, dtype=np.uint8)
    for i in range(m):
        for j in range(k):
            top, left = i * (height + 1), j * (width + 1)
            canvas[top : top + height, left : left + width] = grid[i, j].permute(1, 2, 0).numpy()
    canvas = 255 - canvas if ink else canvas
    axes.imshow(canvas[..., 0] if c == 1 else canvas, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_yticks([i * (height + 1) + height / 2 for i in range(m)], shortened(portrait.names), parse_math=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("the same samples at every client" if portrait.same_samples else "samples of every client")


def draw_column_means(axes: Axes, portrait: DatasetSummary) -> None:
    """Tables have no pictures: each client's column means, in standard deviations of the pooled data."""
    means = portrait.column_means
    assert means is not None
    image = axes.imshow(means.numpy(), cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(portrait.names)), shortened(portrait.names), parse_math=False)
    columns = portrait.columns if len(portrait.columns) <= MOST_COLUMNS else ()
    axes.set_xticks(range(len(columns)), shortened(columns), rotation=90, fontsize=7, parse_math=False)
    axes.set_title("column means (pooled standard deviations)")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def draw_heat_map(axes: Axes, portrait: DatasetSummary) -> None:
    """Client by class, training and test samples together."""
    assert portrait.counts is not None
    counts = portrait.counts.numpy()
    image = axes.imshow(counts, cmap="Blues", vmin=0, vmax=max(1, counts.max()), aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(portrait.names)), shortened(portrait.names), parse_math=False)
    axes.set_title("samples per client and class")
    if counts.shape[1] <= MOST_NUMBERS:
        labels = shortened(portrait.classes)
        turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, labels)) > 4 else {}
        axes.set_xticks(range(counts.shape[1]), labels, parse_math=False, **turned)
        for (i, j), count in np.ndenumerate(counts):
            text = axes.text(j, i, str(count), ha="center", va="center", fontsize=7)
            text.set(color="white" if count > counts.max() / 2 else "black", in_layout=False)
    else:
        axes.set_xlabel(f"{counts.shape[1]} classes")
        axes.figure.colorbar(image, ax=axes, shrink=0.8)


def shortened(names: tuple[str, ...]) -> list[str]:
    """Names cut to what a picture has room for."""
    return [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]


def check_target(path: Path) -> None:
    """Refuse what could not be written, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write a picture to '{path}': end its name in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise SettingError(f"folder '{path.parent}' does not exist: create it or choose another --out")


def save(figure: Figure, path: Path) -> None:
    """Write a picture whole or not at all; letters that no font here has are named, in one line."""
    out = io.BytesIO()
    look: dict[Any, Any] = {
        "svg.hashsalt": "feddrm",  # the same figure gives the same bytes
        "svg.fonttype": "none",  # the reader's fonts draw the letters
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(look), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="Glyph .* missing from")
        for text in figure.findobj(Text):
            text.set_fontfamily(_families())
        figure.savefig(out, format=path.suffix[1:].lower(), dpi=150)
    write_together({path: out.getvalue()})
    if path.suffix.lower() != ".svg" and any("missing from" in str(warning.message) for warning in caught):
        print(
            f"feddrm: warning: {path} shows boxes for letters that no font here has: "
            "install one that has them (say, Noto Sans CJK), or write .svg",
            file=sys.stderr,
        )


@cache
def _families() -> list[str]:
    """Matplotlib's own font, then those of this machine that have the letters it lacks."""
    from matplotlib.font_manager import fontManager

    have = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(name for name in FALLBACKS if name in have)]


def _view_width(portrait: DatasetSummary) -> float:
    return 0.55 * SAMPLES if portrait.gallery is not None else max(3.0, min(12.0, 0.22 * len(portrait.columns)))


def _label_width(portrait: DatasetSummary) -> float:
    return min(12.0, max(3.5, 0.5 * len(portrait.classes) + 1.0))


def _height(portrait: DatasetSummary) -> float:
    rows = len(portrait.names)
    return max(2.5, 0.55 * min(rows, 20) + 0.2 * max(0, rows - 20) + 1.5)
