"""Compares what ``feddrm tune`` picks with the defaults, on several seeds.

    python -m benchmarks.tuned [--data digits] [--method feddrm] [--seeds 5] [--goal average] [--cost 4]
        [--out runs/tuned] [--json results/bench/tuned_digits.json]

The search sees training samples only. Both runs are then measured on the test samples, after the same rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import feddrm
from benchmarks.result import finish


def measured(data: str, method: Any, seed: int, out: Path, **settings: Any) -> dict[str, float]:
    run = feddrm.train(data, method, data_settings={"seed": seed}, seed=seed, out=out, **settings)
    if (run.summary or {}).get("router") is None:
        run.fit_router()
    summary = run.summary or {}
    system = summary["system_accuracy"]
    return {
        "average": summary["average_accuracy"]["mean"],
        "exact": system["exact_density"]["mean"],
        "stacked": system["stacked"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--method", default="feddrm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--goal", default="average")
    parser.add_argument("--cost", type=float, help="default: that of feddrm tune")
    parser.add_argument("--out", type=Path, default=Path("runs/tuned"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        began, folder = (time.monotonic(), time.process_time()), arguments.out / f"seed-{seed}"
        found = feddrm.tune(
            arguments.data, arguments.method, out=folder / "tune", goal=arguments.goal, cost=arguments.cost,
            data_settings={"seed": seed}, seed=seed,
        )  # fmt: skip
        took = {"search_seconds": time.monotonic() - began[0], "search_cpu_seconds": time.process_time() - began[1]}
        picked = found.best[arguments.method]
        both = {
            name: measured(arguments.data, arguments.method, seed, folder / name, **settings)
            for name, settings in (("default", {}), ("tuned", picked.plan))
        }
        seconds = {key: round(value, 1) for key, value in took.items()}
        rows.append({"seed": seed, "picked": dict(picked.values), **seconds, **both})
        print(rows[-1], flush=True)
    means = {
        name: {key: statistics.fmean(row[name][key] for row in rows) for key in rows[0][name]}
        for name in ("default", "tuned")
    }
    protocol = {key: getattr(arguments, key) for key in ("data", "method", "goal", "cost")}
    finish({"protocol": protocol, "seeds": rows, "means": means}, arguments.json)


if __name__ == "__main__":
    main()
