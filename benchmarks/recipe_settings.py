"""Compares settings with the usual ones on held-out samples: what a recipe should hold.

    python -m benchmarks.recipe_settings weight_decay=0.005 [--data digits heart] [--methods feddrm] [--seeds 10]
        [--out runs/recipe_settings] [--json results/bench/recipe_settings.json]

Test samples are not read. Every seed divides the data anew, holds a fifth of the training samples out and trains
twice. The differences are paired; beside their mean stands its standard error.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import feddrm
from benchmarks.result import finish
from feddrm.search.holdout import hold_out


def measured(data: str, method: str, seed: int, out: Path, settings: dict[str, Any]) -> float:
    federation = hold_out(feddrm.load(data, seed=seed), 0.2, seed)
    run = feddrm.train(federation, method, seed=seed, out=out, **settings)
    return float((run.summary or {})["average_accuracy"]["mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE")
    parser.add_argument("--data", nargs="+", default=["digits", "heart"])
    parser.add_argument("--methods", nargs="+", default=["feddrm"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/recipe_settings"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    changed = dict(word.split("=", 1) for word in arguments.settings)
    rows: list[dict[str, Any]] = []
    for method in arguments.methods:
        for data in arguments.data:
            pairs = []
            for seed in range(arguments.seeds):
                folder = arguments.out / data / method / f"seed-{seed}"
                names = {"usual": {}, ",".join(arguments.settings): changed}
                pairs.append([measured(data, method, seed, folder / name, given) for name, given in names.items()])
            differences = [after - before for before, after in pairs]
            rows.append(
                {
                    "data": data,
                    "method": method,
                    "usual": statistics.fmean(before for before, _ in pairs),
                    "changed": statistics.fmean(after for _, after in pairs),
                    "difference": statistics.fmean(differences),
                    "standard_error": statistics.stdev(differences) / len(differences) ** 0.5,
                    "differences": differences,
                }
            )
            print(rows[-1], flush=True)
    finish({"settings": changed, "seeds": arguments.seeds, "rows": rows}, arguments.json)


if __name__ == "__main__":
    main()
