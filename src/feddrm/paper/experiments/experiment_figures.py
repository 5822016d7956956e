"""Figures of the two theoretical experiments: gradient drift and the lambda trade-off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from feddrm.drm.density_figures import POOLED, THIRD, tidy
from feddrm.paper.experiments.drift import EMBEDDINGS, LABELS, Drift
from feddrm.paper.experiments.tradeoff import Tradeoff


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
        tidy(axes)
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
        tidy(axes)
    return figure
