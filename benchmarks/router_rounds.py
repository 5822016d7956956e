"""How many gradient rounds the exact router needs, on real features: CIFAR-10, colour statistics.

    FEDDRM_DATA=folder python -m benchmarks.router_rounds [--json results/bench/router_rounds.json]

Client accuracy on the pooled test set by the best point that the server has after so many rounds, against the
point after 200 rounds, with and without the pooled second moments. No network: anyone can repeat it.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

import torch

from feddrm.data import generator_for, load
from feddrm.evaluation import pooled_queries
from feddrm.router import Recipe
from feddrm.router.features import extract
from feddrm.router.fit import FitState, Problem, Sample, logits_at, moments_of, pooled, scaler_of, solve
from feddrm.runs import hardware, versions

RIDGES, ROUNDS, SHOWN = (1e-4, 1e-5), 200, (1, 2, 5, 10, 15, 20, 30, 60, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    federation, recipe = load("cifar10"), Recipe.parse("colour")
    assert federation.crop is not None
    rows = []
    for number, client in enumerate(federation.clients):
        boxes = federation.crop.boxes(len(client.train), *federation.shape[1:], generator_for(0, number))
        rows.append(extract(recipe, None, {}, client.view(client.train.x, boxes))["colour"])
    test = pooled_queries(federation, crop=True, seed=0, round=0)
    scaler = scaler_of(rows)
    queries = scaler(extract(recipe, None, {}, test.x)["colour"])
    clients = pooled([Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(rows)])
    whitening = moments_of([clients])
    figures: dict[str, object] = {}
    for ridge in RIDGES:
        for name, moments in (("whitened", whitening), ("plain", None)):
            found: list[float] = []

            def watch(state: FitState, found: list[float] = found) -> None:
                right = logits_at(queries, state.at).argmax(1) == test.origin
                found.append(round(100 * float(right.double().mean()), 2))

            problem = Problem(len(federation), queries.shape[1], ridge)
            solve(problem, [clients], moments, rounds=ROUNDS if moments else 100, tolerance=0.0, watch=watch)
            figures[f"ridge {ridge:g}, {name}"] = {
                "client_accuracy_after_rounds": {str(n): found[n - 1] for n in SHOWN if n <= len(found)},
                "at_the_end": found[-1],
            }
            print(figures, flush=True)
    result = {
        "features": queries.shape[1],
        "samples": len(clients),
        "test": len(queries),
        **figures,
        "hardware": hardware("cpu"),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
