"""How much of a vote's accuracy is the luck of the start: one division of the data, several starts.

    FEDDRM_DATA=... python -m benchmarks.vote_starts [--method fedas] [--model lenet] [--rounds 40] [--starts 6]
        [--first 2025] [--data cifar10] [--device cpu] [--out runs/starts] [--json results/bench/vote_starts.json]

Private heads know the classes of their own clients, so their votes scatter and many are tied: the vote's
accuracy hangs on details that hardly move any client's own. Beside it stand both tie rules.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from feddrm.runs import train

SEED = 2025  # of the division


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--method", default="fedas")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--first", type=int, default=SEED, help="the first start; the others follow")
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
        found = run.summary or {}
        votes = json.loads((run.path / "evaluation.json").read_text())["votes"]
        rows.append(
            {
                "start": seed,
                "average": found["average_accuracy"]["mean"],
                "vote": found["system_accuracy"]["vote"]["mean"],
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
        **{key: found[key] for key in ("hardware", "versions", "date")},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "starts"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
