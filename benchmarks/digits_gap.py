"""Measures how much perfect routing can gain on the digits: FedDRM's oracle against FedAvg's global model.

    python -m benchmarks.digits_gap [--rounds 40] [--json results/bench/digits_gap.json]

It repeats the demo's training for five seeds. The bundled federation is made so that the gap is at least five points.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from feddrm.data import load
from feddrm.runs import train

SEEDS = range(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            federation = load("digits", seed=seed)
            runs = {
                method: train(
                    federation, method, out=Path(folder) / f"{method}{seed}", rounds=arguments.rounds, seed=seed
                )
                for method in ("fedavg", "feddrm", "local")
            }
            summaries = {method: run.summary or {} for method, run in runs.items()}
            rows.append(
                {
                    "seed": seed,
                    "fedavg_global": summaries["fedavg"]["global_accuracy"]["mean"],
                    "feddrm_oracle": summaries["feddrm"]["oracle_accuracy"]["mean"],
                    "feddrm_head_density": summaries["feddrm"]["system_accuracy"]["head_density"]["mean"],
                    "feddrm_client": summaries["feddrm"]["client_accuracy"]["head_density"]["mean"],
                    "local_oracle": summaries["local"]["oracle_accuracy"]["mean"],
                }
            )
            print(rows[-1], flush=True)
        last = summaries["feddrm"]
    mean = {key: round(statistics.mean(row[key] for row in rows), 4) for key in rows[0] if key != "seed"}
    result = {
        "mean": mean,
        "gap_points": round(100 * (mean["feddrm_oracle"] - mean["fedavg_global"]), 2),
        "rounds": arguments.rounds,
        "seeds": rows,
        **{key: last[key] for key in ("hardware", "versions", "date")},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "seeds"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
