"""Figures of a federation, after the paper's: samples under every client's shift, and the label heat map."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddrm.io.dataset_summary import GALLERY_SIZE, DatasetSummary

MOST_NUMBERS = 24  # with more classes, the heat map shows colours without numbers
MOST_COLUMNS = 60  # more columns than this are not named
MOST_ROWS = 60  # with more clients, rows are not named; of pictures, the first ones are shown
LONGEST = 28  # letters of a name in a figure


def federation_figure(dataset: DatasetSummary) -> Figure:
    """Two panels: samples or column means per client (left), samples per client and class (right)."""
    left, right = _view_width(dataset), _label_width(dataset)
    figure = Figure(figsize=(left + right + 3.0, _height(dataset)), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=(left, right))
    draw_view(axes[0], dataset)
    draw_heat_map(axes[1], dataset)
    title = f"{dataset.name}: {int(dataset.sizes.sum())} training samples at {len(dataset.names)} clients"
    figure.suptitle(title, parse_math=False)
    return figure


def view_figure(dataset: DatasetSummary) -> Figure:
    """Samples or column means of every client."""
    figure = Figure(figsize=(_view_width(dataset) + 1.5, _height(dataset)), layout="constrained")
    draw_view(figure.subplots(), dataset)
    return figure


def label_figure(dataset: DatasetSummary) -> Figure:
    """Samples per client and class."""
    figure = Figure(figsize=(_label_width(dataset) + 1.5, _height(dataset)), layout="constrained")
    draw_heat_map(figure.subplots(), dataset)
    return figure


def draw_view(axes: Axes, dataset: DatasetSummary) -> None:
    """Draw sample images, or column means if samples are rows of a table."""
    if dataset.gallery is not None:
        draw_shift_grid(axes, dataset)
    else:
        draw_column_means(axes, dataset)


def draw_shift_grid(axes: Axes, dataset: DatasetSummary) -> None:
    """Draw one row of images per client: the same samples under each client's shift, or its own samples."""
    assert dataset.gallery is not None
    grid = dataset.gallery[:MOST_ROWS]
    m, k, c, height, width = grid.shape
    # The digits are stored light on dark: invert them. Users' own grey images, such as X-rays, stay as they are.
    inverted = c == 1 and dataset.same_samples
    background = 0 if inverted else 255
    canvas = np.full((m * (height + 1) - 1, k * (width + 1) - 1, c), background, dtype=np.uint8)
    for i in range(m):
        for j in range(k):
            top, left = i * (height + 1), j * (width + 1)
            canvas[top : top + height, left : left + width] = grid[i, j].transpose(1, 2, 0)
    canvas = 255 - canvas if inverted else canvas
    axes.imshow(canvas[..., 0] if c == 1 else canvas, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    names = shortened(dataset.names[:m])
    axes.set_yticks([i * (height + 1) + height / 2 for i in range(m)], names, parse_math=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    whose = f"the first {m} clients" if len(dataset.names) > m else "every client"
    axes.set_title(f"the same samples at {whose}" if dataset.same_samples else f"samples of {whose}")


def draw_column_means(axes: Axes, dataset: DatasetSummary) -> None:
    """Draw each client's column means, in standard deviations of the pooled data."""
    means = dataset.column_means
    assert means is not None
    image = axes.imshow(means, cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto", interpolation="nearest")
    _name_rows(axes, dataset)
    columns = dataset.columns if len(dataset.columns) <= MOST_COLUMNS else ()
    axes.set_xticks(range(len(columns)), shortened(columns), rotation=90, fontsize=7, parse_math=False)
    axes.set_title("column means (pooled standard deviations)")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def draw_heat_map(axes: Axes, dataset: DatasetSummary) -> None:
    """Draw a client-by-class heat map of training and test samples together."""
    counts = dataset.counts
    assert counts is not None
    image = axes.imshow(counts, cmap="Blues", vmin=0, vmax=max(1, counts.max()), aspect="auto", interpolation="nearest")
    _name_rows(axes, dataset)
    axes.set_title(f"samples per client and {dataset.label_noun}")
    if counts.shape[1] <= MOST_NUMBERS and len(counts) <= MOST_ROWS:
        labels = shortened(dataset.classes)
        rotation: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, labels)) > 4 else {}
        axes.set_xticks(range(counts.shape[1]), labels, parse_math=False, **rotation)
        for (i, j), count in np.ndenumerate(counts):
            text = axes.text(j, i, str(count), ha="center", va="center", fontsize=7)
            text.set(color="white" if count > counts.max() / 2 else "black", in_layout=False)
    else:
        axes.set_xlabel(f"{counts.shape[1]} classes")
        axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _name_rows(axes: Axes, dataset: DatasetSummary) -> None:
    """The clients' names beside a heat map, or how many there are."""
    if len(dataset.names) <= MOST_ROWS:
        axes.set_yticks(range(len(dataset.names)), shortened(dataset.names), parse_math=False)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(dataset.names):,} clients")


def shortened(names: tuple[str, ...]) -> list[str]:
    """Names cut to the length that a figure has room for: in the middle, because long names often begin alike."""
    end = LONGEST // 2 - 2
    return [name if len(name) <= LONGEST else f"{name[: LONGEST - 1 - end]}…{name[-end:]}" for name in names]


def _view_width(dataset: DatasetSummary) -> float:
    return 0.55 * GALLERY_SIZE if dataset.gallery is not None else max(3.0, min(12.0, 0.22 * len(dataset.columns)))


def _label_width(dataset: DatasetSummary) -> float:
    return min(12.0, max(3.5, 0.5 * len(dataset.classes) + 1.0))


def _height(dataset: DatasetSummary) -> float:
    rows = min(len(dataset.names), MOST_ROWS)
    return max(2.5, 0.55 * min(rows, 20) + 0.2 * max(0, rows - 20) + 1.5)
