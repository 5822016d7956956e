"""How much guiding has to win on the digits: FedAvg's global model against the oracle of FedDRM's own heads.

    python -m benchmarks.digits_gap [--rounds 40] [--json results/bench/digits_gap.json]

The demo's training, five seeds. The embedded federation is meant to leave at least five points.
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
            found = {method: run.summary or {} for method, run in runs.items()}
            rows.append(
                {
                    "seed": seed,
                    "fedavg_global": found["fedavg"]["global_accuracy"]["mean"],
                    "feddrm_oracle": found["feddrm"]["oracle_accuracy"]["mean"],
                    "feddrm_head_density": found["feddrm"]["system_accuracy"]["head_density"]["mean"],
                    "feddrm_client": found["feddrm"]["client_accuracy"]["head_density"]["mean"],
                    "local_oracle": found["local"]["oracle_accuracy"]["mean"],
                }
            )
            print(rows[-1], flush=True)
        last = found["feddrm"]
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
