"""Cost of a training round, of the router's fit and of a decision against clients, features, samples and classes.

    python -m benchmarks.cost_curves [--quick] [--json FILE] [--figure FILE]

One size grows while the others stay as in USUAL. Every point is measured in a process of its own with one thread, on
made-up rows. Its time is CPU time, because other programs may run: of a round (10 local steps of a tenth of the
clients, and their evaluation) the shortest of 5, of a decision the shortest of 50, of a fit the whole. Its memory is
the peak beyond that of Python and its libraries, with the data. Samples are those of one client, or the queries that
are decided at once. A fit has class heads only where classes grow; without them it does not look at classes. The
exponent is the slope of a straight line through the points in logarithms. When the size doubles, a cost with exponent 0
stays, with 1 it doubles, with 2 it is four times as large. ``last`` is the slope between the last two points, where
fixed costs count least.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks import many_clients, thousand_clients
from benchmarks.result import each_alone, finish, peak_gib
from feddrm.report.figure_files import save_figure
from feddrm.serve.loaded_router import decide

ROUND, FIT, DECISION = "training round", "router's fit", "decision"
USUAL = {
    ROUND: {"clients": 32, "features": 20, "samples": 100, "classes": 10},
    FIT: {"clients": 8, "features": 20, "samples": 50, "classes": 2},
    DECISION: {"clients": 100, "features": 100, "samples": 1},
}
CLIENTS, FEATURES = (8, 32, 100, 320, 1000), (100, 300, 1000, 2000, 5000)
SAMPLES, CLASSES = (30, 100, 300, 1000, 3000), (2, 5, 10, 30, 100)
GROWING = {
    ROUND: {"clients": CLIENTS, "features": FEATURES, "samples": SAMPLES, "classes": CLASSES},
    FIT: {"clients": CLIENTS, "features": FEATURES, "samples": (*SAMPLES[1:], 10_000), "classes": CLASSES},
    DECISION: {"clients": CLIENTS, "features": FEATURES, "samples": (1, 4, 16, 64, 256)},
}
QUANTITIES = {"cpu_seconds": "CPU seconds", "memory_mib": "peak memory beyond libraries, MiB"}
AXES = {
    "clients": "clients",
    "features": "features",
    "samples": "samples of a client; queries of a decision",
    "classes": "classes",
}
STYLES = {ROUND: "o-", FIT: "s-", DECISION: "^-"}


def measure(work: str, axis: str, size: int) -> dict[str, float]:
    """Seconds and memory of one point, in this process."""
    torch.set_num_threads(1)
    before, sizes = peak_gib(), USUAL[work] | {axis: size}
    if work == ROUND:
        seconds = thousand_clients.measure("rows", rounds=7, **sizes)["shortest_round_cpu_seconds"]
    elif work == FIT:
        seconds = many_clients.measure_fit(**sizes, heads=axis == "classes")["cpu_seconds"]
    else:
        router, query = many_clients.made_query(sizes["clients"], sizes["samples"], sizes["features"])
        seconds = many_clients.shortest(lambda: decide(router, [query]), repeats=50) / 1000
    return {"size": size, "cpu_seconds": seconds, "memory_mib": 1024 * (peak_gib() - before)}


def exponents(points: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The slopes in logarithms through all points and through the last two, of time and of memory."""
    x, found = np.log([point["size"] for point in points]), {}
    for key in QUANTITIES:
        y = np.log([point[key] for point in points])
        found[key] = {"all": float(np.polyfit(x, y, 1)[0]), "last": float((y[-1] - y[-2]) / (x[-1] - x[-2]))}
    return found


def figure(curves: Mapping[str, Any]) -> Figure:
    """Seconds and memory against clients, features, samples and classes; beside every line its last exponent."""
    drawn = Figure(figsize=(12, 6), layout="constrained")
    panels = drawn.subplots(len(QUANTITIES), len(AXES), sharex="col", sharey="row")
    for (row, (key, quantity)), (column, (axis, title)) in product(
        enumerate(QUANTITIES.items()), enumerate(AXES.items())
    ):
        place = panels[row, column]
        for work, style in STYLES.items():
            if (curve := curves[work].get(axis)) is None:
                continue
            sizes, costs = ([point[name] for point in curve["points"]] for name in ("size", key))
            (line,) = place.loglog(sizes, costs, style, label=work)
            slope, end = f"{round(curve['exponents'][key]['last'], 1) + 0.0:.1f}", (sizes[-1], costs[-1])
            place.annotate(slope, end, (6, -3), textcoords="offset points", color=line.get_color())
        place.set(xlabel=title if row else None, ylabel=None if column else quantity)
        place.xaxis.set_major_formatter("{x:,.0f}")
        place.yaxis.set_major_formatter("{x:,g}")
        place.minorticks_off()
        place.margins(x=0.2, y=0.1)
        place.grid(alpha=0.3)
    panels[1, 0].set_ylim(bottom=10)
    handles, works = panels[0, 0].get_legend_handles_labels()
    note = "number at the end of a line: exponent between its last two points"
    drawn.legend(handles, works, title=note, loc="outside upper center", ncols=len(works), frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes only, to try the benchmark")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)  # as every point does; the hardware's line says so
    curves: dict[str, Any] = {work: {} for work in GROWING}
    for work, axes in GROWING.items():
        for axis, sizes in axes.items():
            points = list(each_alone(measure, [(work, axis, size) for size in sizes[: 2 if given.quick else None]]))
            curves[work][axis] = {"points": points, "exponents": exponents(points)}
            print(work, axis, curves[work][axis], file=sys.stderr)
    finish({"usual": USUAL, "curves": curves}, given.json)
    if given.figure is not None:
        save_figure(figure(curves), given.figure)


if __name__ == "__main__":
    main()
