"""Measures the gain of the exact router on the digits: the demo's training, five seeds.

    python -m benchmarks.digits_router [--rounds 40] [--seeds 5] [--json results/bench/digits_router.json]

The exact router is compared with the published client head of the same FedDRM model and with FedAvg's global model.
All choices of the router are made on training data; see docs/router_fit.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from feddrm.data import load
from feddrm.runs import Run, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            federation = load("digits", seed=seed)
            runs = {
                method: train(
                    federation, method, out=Path(folder) / f"{method}{seed}", rounds=arguments.rounds, seed=seed
                )
                for method in ("fedavg", "feddrm")
            }
            runs["feddrm"].fit_router(federation)
            summary = Run.open(runs["feddrm"].path).summary or {}
            rows.append(
                {
                    "seed": seed,
                    "fedavg_global": (runs["fedavg"].summary or {})["global_accuracy"]["mean"],
                    "feddrm_oracle": summary["oracle_accuracy"]["mean"],
                    "refit_oracle": summary["router"]["refit_oracle_accuracy"],
                    "client": {rule: value["mean"] for rule, value in summary["client_accuracy"].items()},
                    "system": {rule: value["mean"] for rule, value in summary["system_accuracy"].items()},
                    "ece": summary["router"]["ece"],
                    "features": summary["router"]["recipe"],
                    "ridge": summary["router"]["ridge"],
                    "fit_seconds": round(sum(summary["router"]["seconds"].values()), 2),
                }
            )
            print(rows[-1], flush=True)

    def mean(*path: str) -> float:
        values = []
        for row in rows:
            value: Any = row
            for key in path:
                value = value[key]
            values.append(value)
        return round(statistics.mean(values), 4)

    result = {
        "mean": {
            "fedavg_global": mean("fedavg_global"),
            "feddrm_oracle": mean("feddrm_oracle"),
            "refit_oracle": mean("refit_oracle"),
            "client": {rule: mean("client", rule) for rule in rows[0]["client"]},
            "system": {rule: mean("system", rule) for rule in rows[0]["system"]},
            "ece": mean("ece"),
        },
        "over_published_points": round(100 * (mean("system", "exact_density") - mean("system", "head_density")), 2),
        "over_global_points": round(100 * (mean("system", "exact_density") - mean("fedavg_global")), 2),
        "rounds": arguments.rounds,
        "seeds": rows,
        **{key: summary[key] for key in ("hardware", "versions", "date")},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "seeds"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
