"""Measures label sets: how often a set holds the label, and how many labels it holds.

    python -m benchmarks.label_sets [--digits 5] [--heart 10] [--rounds N] [--json results/bench/label_sets.json]
    python -m benchmarks.label_sets --run runs/cifar

One division and one training per seed; means over seeds, of the trained models. Every test sample is measured by the
scores of its client's other test samples. ``--run`` measures a finished run with a router instead, and its refitted
heads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import finish
from feddrm.runs import Run
from feddrm.runs.train import train_seeds

Figures = Mapping[str, Mapping[str, Mapping[str, float]]]  # by head, allowed miss, and figure


def means(seeds: Sequence[Figures]) -> dict[str, Any]:
    """The mean of every figure over seeds, and the standard error of the coverage."""
    rows: dict[str, Any] = {}
    for head, misses in seeds[0].items():
        for miss, figures in misses.items():
            values = {name: [seed[head][miss][name] for seed in seeds] for name in figures}
            row = {name: round(statistics.mean(value), 4) for name, value in values.items()}
            if len(seeds) > 1:
                row["standard_error"] = round(statistics.stdev(values["covered"]) / len(seeds) ** 0.5, 4)
            rows.setdefault(head, {})[miss] = row
    return rows


def measure(data: str, seeds: int, folder: Path, **settings: int) -> dict[str, Any]:
    """Train and fit one run per seed."""
    figures = []
    for run in train_seeds(data, seeds=range(seeds), out=folder / data, **settings):
        run.fit_router(heads=False)
        figures.append((run.summary or {})["router"]["label_sets"])
    return {"seeds": seeds, **means(figures)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=5, help="seeds of the digits")
    parser.add_argument("--heart", type=int, default=10, help="seeds of heart")
    parser.add_argument("--rounds", type=int, help="of training (default: the recipe's)")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.run is not None:
        run = Run.open(arguments.run)
        finish({"run": means([run.evaluate()["label_sets"]])}, arguments.json, str(run.config.get("device", "cpu")))
        return
    settings = {} if arguments.rounds is None else {"rounds": arguments.rounds}
    counts = {"digits": arguments.digits, "heart": arguments.heart}
    with tempfile.TemporaryDirectory() as folder:
        result = {data: measure(data, seeds, Path(folder), **settings) for data, seeds in counts.items() if seeds}
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
