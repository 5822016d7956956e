"""Measures what every method sends on the bundled digits, and at which accuracy.

    python -m benchmarks.communication [--seeds 1] [--rounds 40] [--json results/bench/communication.json]
    python -m benchmarks.communication --page results/bench/communication.json

All methods have their usual settings, with eight clients of which all take part in every round. Accuracies are means
over the seeds, in percent, of several with their standard deviation; every seed divides the data anew. What is sent
does not depend on the seed. The second command writes the table of docs/methods.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.result import finish, show
from feddrm import Method, train
from feddrm.report.accuracy_measures import headline, read_scores

VARIANTS = ("fedas", "fedpac")  # those whose original sends more
WAYS = ("bytes_per_download", "bytes_per_upload")


def methods() -> dict[str, Method]:
    """All methods with rounds, and the variants that send something else, by their names in the table."""
    trained = {name: Method.make(name) for name in sorted(Method.family) if not Method.family[name].closed_form}
    return trained | {f"{name}, original": Method.make(name, variant="original") for name in VARIANTS}


def measured(method: Method, rounds: int, seeds: int) -> dict[str, Any]:
    """What one method sends, and its accuracies on every division of the data."""
    accuracies: dict[str, list[float]] = {"average": [], "system": []}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            run = train("digits", method, rounds=rounds, seed=seed, data_settings={"seed": seed}, out=folder)
            summary = run.summary or {}
            scores = read_scores(summary, run.folder.summary_file)
            for kind, values in accuracies.items():
                measure = headline(kind, scores)
                assert measure is not None
                values.append(round(100 * scores[measure].mean, 2))
    return {"communication": summary["communication"], **accuracies}


def table(figures: Mapping[str, Any]) -> str:
    """All methods in Markdown, the least sent first."""
    rows = sorted(figures["methods"].items(), key=lambda row: row[1]["communication"]["bytes_total"])
    header = ["method", "kB down", "kB up", "kB down, tuning", "kB up, tuning", "MB in total", "average", "system"]
    lines = [f"| {' | '.join(header)} |", "|---|" + "---|" * (len(header) - 1)]
    for name, row in rows:
        sent, stages = row["communication"], row["communication"]["stages"]
        each = [
            f"{stages[stage][way] / 1e3:.1f}" if stage in stages else "–" for stage in ("train", "tune") for way in WAYS
        ]
        total = f"{sent['bytes_total'] / 1e6:.1f}"
        accuracies = [_mean_and_deviation(row[kind]) for kind in ("average", "system")]
        lines.append(f"| {' | '.join([f'`{name}`', *each, total, *accuracies])} |")
    return "\n".join(lines)


def _mean_and_deviation(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, metavar="JSON", help="show these figures in the documentation")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if arguments.page is not None:
        show(arguments.docs / "methods.md", "communication", table(json.loads(arguments.page.read_text())))
        return
    figures: dict[str, Any] = {"seeds": arguments.seeds, "rounds": arguments.rounds, "methods": {}}
    for name, method in methods().items():
        figures["methods"][name] = measured(method, arguments.rounds, arguments.seeds)
        print(name, figures["methods"][name], flush=True)
    finish(figures, arguments.json)


if __name__ == "__main__":
    main()
