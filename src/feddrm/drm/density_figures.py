"""Figures of densities that a density ratio model fitted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit

OWN, POOLED, THIRD = "#b9c6d3", "#d55e00", "#0072b2"
MOST_PANELS = 36


def density_figure(fit: DensityRatioFit) -> Figure:
    """One panel per population and column: the histogram of its own sample, and the density fitted to all data."""
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
    """A kernel estimate from weighted observations; with ``positive``, on the log scale, so that it is 0 below 0."""
    if positive:
        inside = at > 0
        density = np.zeros_like(at)
        density[inside] = gaussian_kde(np.log(x), weights=weights)(np.log(at[inside])) / at[inside]
        return density
    return np.asarray(gaussian_kde(x, weights=weights)(at))


def tidy(axes: Axes) -> None:
    """Leave two spines and put a pale grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e7eb")
    axes.set_axisbelow(True)
