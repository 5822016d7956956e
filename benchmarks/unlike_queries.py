"""Measures which queries that are unlike all training data a router refuses, with decorrelated inputs and without.

    python -m benchmarks.unlike_queries [--seeds 5] [--json results/bench/unlike_queries.json]

The tables heart and tcga_brca, a division and a router on raw features per seed, without a network. Queries are the
clients' test rows; *uniform* ones, every column drawn in its range; *permuted* ones, every column from another patient;
*halves*, the second half of the columns from another patient. A column's network inputs stay together. ``squares`` is
the mean square of the standardised features, ``decorrelated`` the router's own strangeness; both have the threshold of
the router's calibration. Few rounds are enough: the strangeness does not depend on the router's weights.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import feddrm
from benchmarks.result import finish
from feddrm.router import Router, RouterSettings, fit_router
from feddrm.router.features.decorrelated_inputs import strangeness
from feddrm.router.fit.calibration import STRANGER

CATEGORIES = 10  # a column with no more different values is drawn from these


def columns_of(router: Router) -> list[list[int]]:
    """The network inputs of every raw column of a table."""
    count = router.shape[0]
    if router.schema is None:
        return [[i] for i in range(count)]
    return [[*range(own.start, own.stop), *([] if mark is None else [mark])] for _, own, mark in router.schema.places]


def odd_queries(router: Router, known: Tensor, rows: Tensor, random: torch.Generator) -> dict[str, Tensor]:
    """As many queries of every kind as there are test rows."""
    count, columns = len(rows), columns_of(router)
    uniform, permuted, halves = (rows.clone() for _ in range(3))
    for column in columns:
        values = torch.unique(known[:, column], dim=0)
        drawn = values[torch.randint(len(values), (count,), generator=random)]
        if len(values) > CATEGORIES:
            low, high = values[:, 0].min(), values[:, 0].max()
            drawn[:, 0] = low + (high - low) * torch.rand(count, generator=random)
        uniform[:, column] = drawn
        permuted[:, column] = rows[torch.randperm(count, generator=random)][:, column]
    other = rows[torch.randperm(count, generator=random)]
    for column in columns[len(columns) // 2 :]:
        halves[:, column] = other[:, column]
    return {"uniform": uniform, "permuted": permuted, "halves": halves}


def measure(data: str, seed: int) -> dict[str, Any]:
    """Shares refused, in percent, and the area under the ROC curve against test rows, of one division."""
    federation = feddrm.load(data, seed=seed)
    router = fit_router(None, {}, federation, RouterSettings(features="raw", heads=False, rounds=3)).router
    known = torch.cat([client.view(client.train.x) for client in federation.clients])
    rows = torch.cat([client.view(client.test.x) for client in federation.clients])
    queries = {"test": rows, **odd_queries(router, known, rows, torch.Generator().manual_seed(seed))}

    def squares(x: Tensor) -> Tensor:
        return strangeness(router.scaler(router.features(x)), None)

    scores = {"squares": (squares, STRANGER * float(squares(known).max()))}
    scores["decorrelated"] = (lambda x: router.strangeness(router.features(x)), router.calibration.unlike_above)
    figures: dict[str, Any] = {"inputs": router.shape[0], "training_rows": len(known)}
    for name, (score, most) in scores.items():
        found = {kind: score(x) for kind, x in queries.items()}
        figures[name] = {
            "threshold": most,
            "refused_percent": {kind: 100 * float((values > most).double().mean()) for kind, values in found.items()},
            "auroc": {kind: area(found["test"], found[kind]) for kind in found if kind != "test"},
        }
    return figures


def area(usual: Tensor, odd: Tensor) -> float:
    """The probability that an odd query is stranger than a usual one."""
    return float((odd[:, None] > usual).double().mean() + (odd[:, None] == usual).double().mean() / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables = {data: [measure(data, seed) for seed in range(options.seeds)] for data in ("heart", "tcga_brca")}
    finish({"seeds": options.seeds, **{data: means(rows) for data, rows in tables.items()}}, options.json)


def means(values: Any) -> Any:
    """The mean of every number over seeds."""
    if isinstance(values[0], dict):
        return {key: means([value[key] for value in values]) for key in values[0]}
    return round(statistics.mean(values), 3)


if __name__ == "__main__":
    main()
