"""Many clients at a glance: the spread of their figures, and which are best and worst by their own model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from feddrm.report.run_figures import WIDTH, client_label, client_series
from feddrm.report.run_record import ClientResult
from feddrm.report.svg import SERIES

MANY = 30  # clients, up to which each has a bar and a row
EDGE = 10  # the best and the worst that are shown
BINS = 20


def spread_figure(clients: Sequence[ClientResult], noun: str = "accuracy") -> Figure:
    """A histogram of the clients by their own model's figure, and a box for every way to answer."""
    ways = client_series(clients, recall=False)
    values = [[100 * v for c in clients if (v := c.values.get(way)) is not None] for way in ways]
    figure = Figure(figsize=(WIDTH, 3.4 + 0.25 * len(ways)), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(values[0], bins=np.linspace(0, 100, BINS + 1), color=SERIES[0], alpha=0.6)
    left.set(xlabel=f"{noun} of the {client_label(ways[0])} (%)", ylabel="clients", xlim=(0, 100))
    right.boxplot(values, orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6)
    right.set_yticks(range(1, len(ways) + 1), [client_label(way) for way in ways], parse_math=False)
    right.invert_yaxis()
    right.set(xlabel=f"{noun} (%)", xlim=(0, 100))
    return figure


def spread_in_words(clients: Sequence[ClientResult]) -> str:
    """The quartiles and the extremes over clients, for every way to answer."""
    parts = []
    for way in client_series(clients, recall=False):
        values = [v for client in clients if (v := client.values.get(way)) is not None]
        low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        text = f"median {middle:.1%}, middle half {first:.1%} to {third:.1%}, all {low:.1%} to {high:.1%}"
        parts.append(f"{client_label(way)}: {text}")
    return "; ".join(parts)


def edges(clients: Sequence[ClientResult]) -> tuple[list[ClientResult], list[ClientResult]]:
    """The best and the worst clients by their own model, each beginning with the extreme; equal ones in their order."""
    ways = client_series(clients, recall=False)
    known = [client for client in clients if ways and client.values.get(ways[0]) is not None]

    def figure(client: ClientResult) -> float:
        return client.values[ways[0]] or 0.0

    return sorted(known, key=lambda client: -figure(client))[:EDGE], sorted(known, key=figure)[:EDGE]
