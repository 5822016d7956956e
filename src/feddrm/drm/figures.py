"""Pictures: fitted densities, gradient drift, the lambda trade-off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from feddrm.drm.basis import Floats
from feddrm.drm.drift import EMBEDDINGS, LABELS, Drift
from feddrm.drm.model import DensityRatioFit
from feddrm.drm.tradeoff import Tradeoff

OWN, POOLED, THIRD = "#b9c6d3", "#d55e00", "#0072b2"
MOST_PANELS = 36


def density_figure(fit: DensityRatioFit) -> Figure:
    """Populations across, columns down: each one's own histogram, and its density from everybody's data."""
    populations = min(len(fit.names), MOST_PANELS)
    rows = min(len(fit.columns), max(1, MOST_PANELS // populations))
    figure = Figure(figsize=(2.2 + 2.6 * populations, 0.9 + 2.2 * rows), layout="constrained")
    grid = figure.subplots(rows, populations, squeeze=False, sharex="row", sharey="row")
    for row in range(rows):
        x = fit.values[:, row]
        edges = np.histogram_bin_edges(x, bins=min(60, max(8, int(3 * len(x) ** (1 / 3)))))
        for i in range(populations):
            axes = grid[row, i]
            axes.hist(x[fit.owner == i], edges, density=True, color=OWN, label="its own sample")
            points = np.linspace(edges[0], edges[-1], 300)
            if np.ptp(x) > 0:
                positive = fit.model.basis == "gamma"
                axes.plot(
                    points, weighted_density(x, fit.weights[:, i], points, positive), POOLED, label="fitted to all"
                )
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"{fit.names[i][:28]} (n = {fit.counts[i]})", parse_math=False, fontsize="medium")
            if i == 0:
                axes.set_ylabel(fit.columns[row][:28], parse_math=False)
    grid[0, 0].legend(frameon=False, fontsize="small")
    return figure


def weighted_density(x: Floats, weights: Floats, at: Floats, positive: bool = False) -> Floats:
    """A kernel estimate from weighted observations; of positive ones on the log scale, so that none leaks below 0."""
    if positive:
        inside = at > 0
        density = np.zeros_like(at)
        density[inside] = gaussian_kde(np.log(x), weights=weights)(np.log(at[inside])) / at[inside]
        return density
    return np.asarray(gaussian_kde(x, weights=weights)(at))


def drift_figure(drifts: Sequence[Drift]) -> Figure:
    """Relative drift of both heads over rounds, one panel per setting."""
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    grid = figure.subplots(len(LABELS), len(EMBEDDINGS), sharex=True, sharey=True, squeeze=False)
    for axes, drift in zip(grid.flat, drifts, strict=True):
        for head, colour, dash in (("client", POOLED, "-"), ("class", THIRD, "--")):
            curve = drift.relative[head]
            axes.plot(np.arange(len(curve)), curve, color=colour, linestyle=dash, label=f"{head} head")
        axes.set_title(f"{LABELS[drift.labels]}; {EMBEDDINGS[drift.embedding]}", fontsize="small")
        axes.set_yscale("log")
        _tidy(axes)
    grid[0, 0].legend(frameon=False)
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("relative gradient drift", fontsize="medium")
    return figure


def tradeoff_figure(result: Tradeoff) -> Figure:
    """Left: FedAvg's distance from the optimum and the bound. Right: the optimum's distance from the truth."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    panels[0].plot(result.lambdas, result.floor, color=POOLED, marker="o", label="measured")
    panels[0].plot(result.lambdas, result.bound, color="#7f7f7f", linestyle=":", label="bound of the theorem")
    panels[0].set_title("FedAvg from the minimiser, squared", fontsize="small")
    for axes, head in zip(panels[1:], ("client", "class"), strict=True):
        for (ridge, errors), (colour, dash, mark) in zip(
            result.error.items(), ((THIRD, "-", "s"), (POOLED, "--", "^")), strict=True
        ):
            label = f"measured, ridge {ridge:g}"
            axes.plot(result.lambdas, errors[head], color=colour, linestyle=dash, marker=mark, label=label)
        axes.plot(result.lambdas, result.lemma[head], color="#7f7f7f", linestyle=":", label="lemma, ridge 0")
        axes.set_title(f"{head} head: minimiser from the truth, squared", fontsize="small")
    for axes in panels:
        axes.set_yscale("log")
        axes.set_xlabel("lambda")
        axes.legend(frameon=False, fontsize="small")
        _tidy(axes)
    return figure


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e7eb")
    axes.set_axisbelow(True)
