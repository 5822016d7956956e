"""The paper's figures: from finished cells, from the data, or from a small simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from feddrm.data.datasets.cifar import Cifar10, read_pool
from feddrm.data.partition import partition
from feddrm.data.shift import LEVELS, colour_shifts
from feddrm.errors import FeddrmError
from feddrm.io.dataset_summary import GALLERY_SIZE, DatasetSummary
from feddrm.paper.cell_records import CellRecord
from feddrm.paper.experiments.drift import drift_experiment
from feddrm.paper.experiments.experiment_figures import drift_figure
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import tables
from feddrm.registry import check_choice
from feddrm.report.federation_figures import draw_heat_map, draw_shift_grid
from feddrm.report.svg import SERIES

MARKERS = "osD^vP*"
STYLES = ("-", "--", ":")  # when the colours are used up
DIVISIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Dir-0.3", {"kind": "dirichlet", "alpha": 0.3, "shards": 5}),
    ("Dir-1.3", {"kind": "dirichlet", "alpha": 1.3, "shards": 5}),
    ("Dir-2.3", {"kind": "dirichlet", "alpha": 2.3, "shards": 5}),
    ("5-SPC", {"kind": "shards", "alpha": 0.3, "shards": 5}),
)


def figure(name: str, grid: Grid, records: Mapping[str, CellRecord], data_dir: str | None = None) -> Figure:
    """Draw a figure by name. Missing cells leave gaps; a figure without any finished cell is refused."""
    check_choice("figure", name, FIGURES)
    return FIGURES[name][1](grid, records, data_dir)


def _sweep(name: str) -> Callable[[Grid, Mapping[str, CellRecord], str | None], Figure]:
    """A function that draws a table's columns as lines over its rows."""

    def draw(grid: Grid, records: Mapping[str, CellRecord], _data_dir: str | None) -> Figure:
        table = tables(grid, name, records)[0]
        done = sum(row.entries[0].ours is not None for row in table.rows)
        if not done:
            raise FeddrmError(f"no cell of '{name}' has been run: feddrm paper run --only {name}")
        drawing = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = drawing.subplots()
        for j, column in enumerate(table.columns):
            scores = [row.entries[j].ours for row in table.rows]
            if any(scores):
                y = [np.nan if score is None else 100 * score.mean for score in scores]
                bars = [0.0 if score is None or score.std is None else 100 * score.std for score in scores]
                look: dict[str, Any] = {
                    "color": SERIES[j % len(SERIES)],
                    "marker": MARKERS[j % len(MARKERS)],
                    "markersize": 5,
                }
                axes.errorbar(range(len(y)), y, bars, capsize=3, label=column, **look)
        axes.set_xticks(range(len(table.rows)), [row.label for row in table.rows])
        axes.set_ylabel("accuracy (%)")
        axes.set_title(f"{table.title}\n{done} of {len(table.rows)} cells run", fontsize=10)
        axes.grid(axis="y", linewidth=0.6)
        axes.legend(fontsize=8)
        return drawing

    return draw


def _drift(grid: Grid, records: Mapping[str, CellRecord], data_dir: str | None) -> Figure:  # noqa: ARG001
    return drift_figure(drift_experiment(seed=grid.seed))


def _shifts(grid: Grid, records: Mapping[str, CellRecord], data_dir: str | None) -> Figure:  # noqa: ARG001
    drawing = Figure(figsize=(12, 9.5), layout="constrained")
    places = drawing.subplot_mosaic([[level, "pool"] for level in LEVELS])
    pool = read_pool(Cifar10.origin, data_dir=data_dir, download=False)
    first = [int(np.flatnonzero(pool.fine == k)[0]) for k in range(GALLERY_SIZE)]
    x = torch.from_numpy(pool.images[first]).permute(0, 3, 1, 2)
    for level, axes in places.items():
        shifts = [shift for shift in colour_shifts(level, 32 if level == "pool" else 8) if shift is not None]
        draw_shift_grid(axes, _summary(len(shifts), gallery=torch.stack([shift.direct(x) for shift in shifts]).numpy()))
        axes.set_yticklabels([f"{i}: {shift}" for i, shift in enumerate(shifts)], fontsize=6)
        axes.set_title({"pool": "number of clients (pool)", "high": "high (main)"}.get(level, level), fontsize=9)
    return drawing


def _labels(grid: Grid, records: Mapping[str, CellRecord], data_dir: str | None) -> Figure:  # noqa: ARG001
    drawing = Figure(figsize=(15, 10), layout="constrained")
    labels = read_pool(Cifar10.origin, data_dir=data_dir, download=False).fine
    for axes, (title, division) in zip(drawing.subplots(2, 2).flat, DIVISIONS, strict=True):
        parts = partition(labels, clients=8, seed=grid.seed, **division)
        counts = [np.bincount(labels[np.concatenate(part)], minlength=len(Cifar10.names)).tolist() for part in parts]
        draw_heat_map(axes, _summary(8, counts))
        axes.set_title(title)
    return drawing


def _summary(
    clients: int, counts: list[list[int]] | None = None, gallery: NDArray[np.uint8] | None = None
) -> DatasetSummary:
    """A summary with only the parts that the drawing functions read."""
    class_counts: list[list[int]] = [[]] * clients if counts is None else counts
    facts = [{"name": f"client {i}", "class_counts": row, "train": 0} for i, row in enumerate(class_counts)]
    return DatasetSummary({"name": Cifar10.name, "clients": facts, "classes": Cifar10.names}, gallery)


def _curves(name: str, remedy: str) -> Callable[[Grid, Mapping[str, CellRecord], str | None], Figure]:
    """A function that draws accuracies and loss over rounds: a line for every method, a row for every setting."""

    def draw(grid: Grid, records: Mapping[str, CellRecord], _data_dir: str | None) -> Figure:
        cells = [cell for cell in grid.cells if cell.seed == grid.seed and name in grid.used_by(cell)]
        settings, methods = (list(dict.fromkeys(getattr(c, part) for c in cells)) for part in ("setting", "method"))
        if not any(cell.id in records for cell in cells):
            raise FeddrmError(f"no cell of '{name}' has been run: {remedy}")
        drawing = Figure(figsize=(11, 1 + 2.2 * len(settings)), layout="constrained")
        for setting, places in zip(settings, drawing.subplots(len(settings), 3, squeeze=False), strict=True):
            here = [cell for cell in cells if cell.setting == setting]
            done = [cell for cell in here if cell.id in records]
            title = f"{grid.label('settings', setting)}, {len(done)} of {len(here)} methods"
            for axes, key in zip(places, ("average", "system", "loss"), strict=True):
                for cell in done:
                    style, colour = divmod(methods.index(cell.method), len(SERIES))
                    curve = records[cell.id].content["curve"]
                    y = [np.nan if value is None else (value if key == "loss" else 100 * value) for value in curve[key]]
                    look = {"color": SERIES[colour], "linestyle": STYLES[style % len(STYLES)]}
                    axes.plot(curve["round"], y, label=grid.label("methods", cell.method), linewidth=1.0, **look)
                axes.set_title(f"{title}: {'training loss' if key == 'loss' else f'{key} accuracy (%)'}", fontsize=8)
                axes.tick_params(labelsize=7)
                axes.grid(axis="y", linewidth=0.6)
            places[1].set_xlabel("round", fontsize=7)
        lines = {str(line.get_label()): line for axes in drawing.axes for line in axes.lines}
        drawing.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=7, fontsize=8)
        return drawing

    return draw


FIGURES: dict[str, tuple[str, Callable[[Grid, Mapping[str, CellRecord], str | None], Figure]]] = {
    "main": (
        "accuracies and training loss over rounds, in all six settings",
        _curves("main", "feddrm paper run --only main"),
    ),
    "lambda": ("accuracies against the weight of the class loss", _sweep("lambda")),
    "covariate": ("accuracies against the intensity of covariate shift", _sweep("covariate")),
    "sharing": ("accuracies against what the two branches share", _sweep("sharing")),
    "drift": ("relative gradient drift of both heads, simulated", _drift),
    "shifts": ("samples as every client sees them, for all four kinds of shift (needs CIFAR-10)", _shifts),
    "labels": ("samples per client and class, for four divisions (needs CIFAR-10)", _labels),
    "retina": (
        "accuracies and training loss over rounds on RETINA",
        _curves("retina", "get the data (see FedLGD), then paper run --only retina"),
    ),
}
