"""Figures of densities, distribution functions and quantiles that a density ratio model fitted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.inference.estimates import density_estimate, distribution, quantile, single_column

OWN, POOLED, THIRD = "#b9c6d3", "#d55e00", "#0072b2"
MOST_PANELS = 36
MOST_POINTS = 300  # of a curve


def density_figure(fit: DensityRatioFit, confidence: float = 0.95) -> Figure:
    """One panel per population and column: histogram of its own sample, density fitted to all data, pointwise band."""
    populations = min(len(fit.names), MOST_PANELS)
    rows = min(len(fit.columns), max(1, MOST_PANELS // populations))
    figure = Figure(figsize=(2.2 + 2.6 * populations, 0.9 + 2.2 * rows), layout="constrained")
    grid = figure.subplots(rows, populations, squeeze=False, sharex="row", sharey="row")
    for row in range(rows):
        x = fit.values[:, row]
        edges = _edges(x)
        for i in range(populations):
            axes = grid[row, i]
            axes.hist(x[fit.owner == i], edges, density=True, color=OWN, label="its own sample")
            points = np.linspace(edges[0], edges[-1], 300)
            if np.ptp(x) > 0:
                estimate = density_estimate(fit, i, points, row)
                low, high = estimate.interval(confidence)
                axes.fill_between(points, np.maximum(low, 0), high, color=POOLED, alpha=0.25, linewidth=0)
                axes.plot(points, estimate.value, POOLED, label="fitted to all")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"{fit.names[i][:28]} (n = {fit.counts[i]})", parse_math=False, fontsize="medium")
            if i == 0:
                axes.set_ylabel(fit.columns[row][:28], parse_math=False)
    grid[0, 0].legend(frameon=False, fontsize="small")
    return figure


def _edges(x: Floats) -> Floats:
    """Edges of a histogram's bars. Those of whole numbers hold the same number of them each."""
    bins = min(60, max(8, int(3 * len(x) ** (1 / 3))))
    if (x != np.round(x)).any() or np.ptp(x) < 2:
        return np.histogram_bin_edges(x, bins)
    width = np.ceil((np.ptp(x) + 1) / bins)
    return np.asarray(np.arange(x.min() - 0.5, x.max() + width, width))


def distribution_figure(fit: DensityRatioFit, confidence: float = 0.95) -> Figure:
    """One panel per population: its empirical distribution function, the fitted one and its pointwise band."""
    x = np.unique(single_column(fit))
    points = x[np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).astype(int))]
    estimate = distribution(fit, points)
    low, high = estimate.interval(confidence)
    figure, panels = _panels(fit)
    for i, axes in enumerate(panels):
        own = np.sort(fit.values[fit.owner == i, 0])
        axes.step(own, np.arange(1, len(own) + 1) / len(own), where="post", color=OWN, label="its own sample")
        axes.fill_between(points, low[i], high[i], step="post", color=POOLED, alpha=0.25, linewidth=0)
        axes.step(points, estimate.value[i], where="post", color=POOLED, label="fitted to all")
    panels[0].legend(frameon=False, fontsize="small")
    return figure


def quantile_figure(fit: DensityRatioFit) -> Figure:
    """One panel per population: the fitted quantiles against those of its own sample (QQ plot)."""
    figure, panels = _panels(fit)
    for i, axes in enumerate(panels):
        own = np.sort(fit.values[fit.owner == i, 0])
        shown = np.unique(np.linspace(0, len(own) - 1, MOST_POINTS).astype(int))
        fitted = quantile(fit, (shown + 0.5) / len(own))[i]
        axes.plot(own[[0, -1]], own[[0, -1]], color=OWN)
        axes.plot(own[shown], fitted, ".", color=POOLED, markersize=4)
        axes.set_xlabel("quantiles of its own sample")
    panels[0].set_ylabel("fitted quantiles")
    return figure


def _panels(fit: DensityRatioFit) -> tuple[Figure, list[Axes]]:
    populations = min(len(fit.names), MOST_PANELS)
    figure = Figure(figsize=(2.2 + 2.6 * populations, 3.1), layout="constrained")
    panels = list(figure.subplots(1, populations, squeeze=False, sharex=True, sharey=True)[0])
    for i, axes in enumerate(panels):
        tidy(axes)
        axes.set_title(f"{fit.names[i][:28]} (n = {fit.counts[i]})", parse_math=False, fontsize="medium")
    return figure, panels


def tidy(axes: Axes) -> None:
    """Leave two spines and put a pale grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e7eb")
    axes.set_axisbelow(True)
