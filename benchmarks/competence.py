"""Measures routing by competence against routing by origin, the vote and the rival rules.

    python -m benchmarks.competence [--seeds 5] [--heart 10] [--rounds 20] [--json results/bench/competence.json]

Two federations. *Noisy labels* is made up: two clients have nearly the same inputs, and 40 % of the training labels of
one are wrong. So the client that a query comes from is often not the one that answers it best. *Heart* are the four
hospitals, one division and one training per seed. It is left out with ``--heart 0``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import finish
from feddrm.data import Federation
from feddrm.runs import Run, train
from feddrm.runs.train import train_seeds

WRONG = 0.4  # of Lima's training labels


def noisy_labels(seed: int, samples: int = 300, queries: int = 200) -> Federation:
    """Oslo and Lima: their inputs differ a little in one column of eight, their training labels in their quality."""
    random = np.random.default_rng(seed)

    def draw(count: int, centre: float, wrong: float) -> tuple[Any, Any]:
        x = random.normal(size=(count, 8)).astype("float32")
        x[:, 0] += centre
        y = x[:, 1] + x[:, 2] * x[:, 3] > 0
        return x, (y ^ (random.random(count) < wrong)).astype(int)

    train_samples = {"oslo": draw(samples, -0.5, 0.0), "lima": draw(samples, 0.5, WRONG)}
    test = {"oslo": draw(queries, -0.5, 0.0), "lima": draw(queries, 0.5, 0.0)}
    return Federation.from_arrays(train_samples, test=test, seed=seed)


def measure_noisy_labels(folder: Path, seed: int, rounds: int) -> dict[str, Any]:
    """The figures of one training on :func:`noisy_labels`."""
    run = train(noisy_labels(seed), out=folder / f"noisy{seed}", rounds=rounds, seed=seed)
    run.fit_router()
    return figures(run)


def figures(run: Run) -> dict[str, Any]:
    """Accuracies of a run with a router."""
    summary = run.summary or {}
    return {
        "client": summary["client_accuracy"]["exact_density"]["mean"],
        "expected_right": summary["router"]["expected_right"],
        "fit_seconds": round(summary["router"]["seconds"]["competence"], 2),
        "system": {rule: round(value["mean"], 4) for rule, value in summary["system_accuracy"].items()},
        "oracle": summary["oracle_accuracy"]["mean"],
    }


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every figure over seeds, and what competence gains over origin and over the vote, in points."""
    system = {rule: statistics.mean(row["system"][rule] for row in rows) for rule in rows[0]["system"]}
    single = {key: statistics.mean(row[key] for row in rows) for key in ("client", "oracle", "expected_right")}
    gains = {
        f"over_{other}_points": round(100 * (system["exact_competence"] - system[rule]), 2)
        for other, rule in (("origin", "exact_density"), ("vote", "vote"))
    }
    rounded = {key: round(value, 4) for key, value in single.items()}
    return {**gains, **rounded, "system": {rule: round(value, 4) for rule, value in system.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--heart", type=int, default=10, help="seeds of heart")
    parser.add_argument("--rounds", type=int, default=20, help="of the made-up federation")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows["noisy_labels"] = [
            measure_noisy_labels(Path(folder), seed, arguments.rounds) for seed in range(arguments.seeds)
        ]
        if arguments.heart:
            rows["heart"] = []
            for run in train_seeds("heart", seeds=range(arguments.heart), out=Path(folder) / "heart"):
                run.fit_router()
                rows["heart"].append(figures(run))
    result = {name: {"mean": means(seeds), "seeds": seeds} for name, seeds in rows.items()}
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
