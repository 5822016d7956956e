"""Compares fed3r and fedlda with trained methods on the bundled digits and the hospitals.

    python -m benchmarks.closed_form_methods [--seeds 5] [--json results/bench/closed_form_methods.json]
    python -m benchmarks.closed_form_methods --page results/bench/closed_form_methods.json

fed3r and fedlda need frozen features. They are fitted twice: on the samples themselves (64 pixels, or the columns of a
patient), and on the features of the trunk that FedDRM has trained. Accuracies are means over the seeds, in percent,
with their standard deviation. Every seed divides the data anew. All methods have their usual settings. The second
command writes the table of docs/methods.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.closed_form_cell import Cell
from benchmarks.result import finish, show, write
from feddrm import fit, train
from feddrm.methods import Fed3R, FedLDA
from feddrm.router import RouterSettings

MEASURES = ("own", "global", "client", "system")


def of_summary(summary: dict[str, Any], rule: str | None) -> dict[str, float]:
    """The figures of a run: of its own clients, of its global model, and of the system routed by a rule."""
    found = {"own": summary["oracle_accuracy"]["mean"]}
    if (shared := summary.get("global_accuracy")) is not None:
        found["global"] = shared["mean"]
    for measure in ("client", "system"):
        if (value := summary[f"{measure}_accuracy"].get(rule)) is not None:
            found[measure] = value["mean"]
    return {name: 100 * value for name, value in found.items()}


def measured(data: str, seed: int, out: Path) -> dict[str, dict[str, float]]:
    """The figures of every row on one division of the data."""
    rows = {}
    for method, rule in (("local", "vote"), ("fedavg", "vote"), ("feddrm", "head_density")):
        run = train(data, method, seed=seed, data_settings={"seed": seed}, out=out / method)
        rows[method] = of_summary(run.summary or {}, rule)
    run.fit_router(heads=False)
    rows["feddrm, exact router"] = of_summary(run.summary or {}, "exact_density")
    cell = Cell(run.path, "cpu", RouterSettings(joint=False))
    for closed in (Fed3R(), FedLDA()):
        figures = cell.closed_form(closed)
        renamed = {"own": "own", "global": "probe", "client": "client", "system": "system_refit"}
        rows[f"{closed.name} on FedDRM's features"] = {name: figures[key] for name, key in renamed.items()}
        run = fit(data, closed, out=out / closed.name, seed=seed, data_settings={"seed": seed})
        rows[f"{closed.name} on the samples"] = of_summary(run.summary or {}, "exact_density")
    return rows


def summarised(seeds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Mean and standard deviation over the seeds, by row and measure."""
    return {
        row: {
            name: [round(value([each[row][name] for each in seeds]), 2) for value in (statistics.fmean, _deviation)]
            for name in MEASURES
            if name in seeds[0][row]
        }
        for row in seeds[0]
    }


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(figures: Mapping[str, Any]) -> str:
    """All rows in Markdown."""
    tables = figures["tables"]
    lines = [
        f"| {' | '.join(['fit', *(f'{data}: {name}' for data in tables for name in MEASURES)])} |",
        "|---|" + "---|" * len(MEASURES) * len(tables),
    ]
    for row in next(iter(tables.values())):
        cells = [each[row].get(name) for each in tables.values() for name in MEASURES]
        shown = ["–" if cell is None else "{:.1f} ± {:.1f}".format(*cell) for cell in cells]
        lines.append(f"| {' | '.join([row, *shown])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="+", default=["heart", "digits"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, metavar="JSON", help="show these figures in the documentation")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if arguments.page is not None:
        show(arguments.docs / "methods.md", "closed_form_methods", table(json.loads(arguments.page.read_text())))
        return
    figures: dict[str, Any] = {"seeds": arguments.seeds, "tables": {}}
    for data in arguments.data:
        seeds = []
        for seed in range(arguments.seeds):
            with tempfile.TemporaryDirectory() as folder:
                seeds.append(measured(data, seed, Path(folder)))
            figures["tables"][data] = summarised(seeds)
            write(figures, arguments.json)
            print(data, seed, seeds[-1], flush=True)
    finish(figures, arguments.json)


if __name__ == "__main__":
    main()
