"""Measures how much the initial weights change a vote's accuracy: one division of the data, several starts.

    FEDDRM_DATA=... python -m benchmarks.vote_starts [--method fedas] [--model lenet] [--rounds 40] [--starts 6]
        [--first 2025] [--data cifar10] [--device cpu] [--out runs/starts] [--json results/bench/vote_starts.json]

A private head knows the classes of its own client, so the votes of many heads scatter and many are tied. The vote's
accuracy then depends on details that hardly change any client's own accuracy. Both tie rules are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from feddrm.runs import train

SEED = 2025  # of the division of the data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--method", default="fedas")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--first", type=int, default=SEED, help="seed of the first start; the others follow")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/starts"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.first, arguments.first + arguments.starts):
        run = train(
            arguments.data,
            arguments.method,
            model=arguments.model,
            data_settings={"seed": SEED, "clients": 8, "partition": "dirichlet", "alpha": 0.3, "shift": "high"},
            seed=seed,
            rounds=arguments.rounds,
            evaluation={"window": 5, "every": arguments.rounds, "ties": "cuda"},
            device=arguments.device,
            out=arguments.out / f"{arguments.method}-{arguments.model}-{seed}",
        )
        summary = run.summary or {}
        votes = json.loads((run.path / "evaluation.json").read_text())["votes"]
        rows.append(
            {
                "start": seed,
                "average": summary["average_accuracy"]["mean"],
                "vote": summary["system_accuracy"]["vote"]["mean"],
                "last_round": votes,
            }
        )
        print(rows[-1], flush=True)
    result = {
        "protocol": {key: getattr(arguments, key) for key in ("data", "method", "model", "rounds")},
        **{
            key: {"mean": round(statistics.mean(values), 4), "std": round(statistics.stdev(values), 4)}
            for key in ("average", "vote")
            if len(values := [row[key] for row in rows]) > 1
        },
        "starts": rows,
        **{key: summary[key] for key in ("hardware", "versions", "date")},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "starts"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
