"""Pictures of a federation, after the paper's figures: the shift grid and the label heat map."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from feddrm.data import Federation
from feddrm.errors import FeddrmError, SettingError

FORMATS = (".png", ".svg", ".pdf")
MOST_NUMBERS = 24  # classes beyond this get colours only
SAMPLES = 8


def federation_figure(federation: Federation) -> Figure:
    """Left: how every client sees. Right: how many samples of each class it holds."""
    rows, classes = len(federation), len(federation.classes)
    pictures = len(federation.shape) == 3
    left = 0.55 * SAMPLES if pictures else max(3.0, 0.22 * len(federation.columns or ()))
    right = min(12.0, max(3.5, 0.5 * classes + 1.0))
    figure = Figure(figsize=(left + right + 3.0, max(2.5, 0.55 * rows + 1.5)), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=(left, right))
    if pictures:
        draw_shift_grid(axes[0], federation)
    else:
        draw_column_means(axes[0], federation)
    draw_heat_map(axes[1], federation)
    figure.suptitle(f"{federation.name}: {int(federation.sizes.sum())} training samples at {rows} clients")
    return figure


def draw_shift_grid(axes: Axes, federation: Federation) -> None:
    """One row per client: the same samples under every client's shift, or its own where there is none."""
    grid = federation.gallery
    if grid is None:
        grid = torch.stack([_own_samples(c.view.pixels(c.test.x[:SAMPLES])) for c in federation.clients])
    m, k, c, height, width = grid.shape
    paper = 0 if c == 1 else 255
    canvas = np.full((m * (height + 1) - 1, k * (width + 1) - 1, c), paper, dtype=np.uint8)
    for i in range(m):
        for j in range(k):
            top, left = i * (height + 1), j * (width + 1)
            canvas[top : top + height, left : left + width] = grid[i, j].permute(1, 2, 0).cpu().numpy()
    # Grey digits are stored as ink; show them dark on light.
    axes.imshow(255 - canvas[..., 0] if c == 1 else canvas, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_yticks([i * (height + 1) + height / 2 for i in range(m)], federation.names)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("the same samples at every client" if federation.gallery is not None else "samples of every client")


def draw_column_means(axes: Axes, federation: Federation) -> None:
    """Tables have no pictures: each client's column means, in standard deviations of the pooled data."""
    pooled = torch.cat([client.train.x for client in federation.clients])
    scale = pooled.std(0).clamp_min(1e-12)
    means = torch.stack([(client.train.x.mean(0) - pooled.mean(0)) / scale for client in federation.clients])
    image = axes.imshow(means.cpu().numpy(), cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
    axes.set_yticks(range(len(federation)), federation.names)
    axes.set_xticks(range(len(federation.columns or ())), federation.columns or (), rotation=90, fontsize=7)
    axes.set_title("column means (pooled standard deviations)")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def draw_heat_map(axes: Axes, federation: Federation) -> None:
    """Client by class, training and test samples together."""
    counts = federation.counts().numpy()
    image = axes.imshow(counts, cmap="Blues", aspect="auto")
    axes.set_yticks(range(len(federation)), federation.names)
    axes.set_title("samples per client and class")
    if counts.shape[1] <= MOST_NUMBERS:
        axes.set_xticks(range(counts.shape[1]), federation.classes, rotation=45, ha="right")
        for (i, j), count in np.ndenumerate(counts):
            colour = "white" if count > counts.max() / 2 else "black"
            axes.text(j, i, str(count), ha="center", va="center", fontsize=7, color=colour)
    else:
        axes.set_xlabel(f"{counts.shape[1]} classes")
        axes.figure.colorbar(image, ax=axes, shrink=0.8)


def check_target(path: Path) -> None:
    """Refuse what could not be written, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write a picture to '{path}': end its name in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise SettingError(f"folder '{path.parent}' does not exist: create it or choose another --out")


def save(figure: Figure, path: Path) -> None:
    """Write under a temporary name and rename, so that no half-written picture is left behind."""
    part = path.with_name(f".{path.name}.part")
    try:
        with matplotlib.rc_context({"svg.hashsalt": "feddrm"}):  # the same figure gives the same bytes
            figure.savefig(part, format=path.suffix[1:].lower(), dpi=150)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FeddrmError(f"cannot write {path} ({error.strerror}): free the disk or choose another --out") from error


def _own_samples(pixels: Tensor) -> Tensor:
    missing = SAMPLES - len(pixels)
    if missing <= 0:
        return pixels
    return torch.cat([pixels, pixels.new_full((missing, *pixels.shape[1:]), 255)])
