"""Compares the closed form with the exact fit on the features of a trained run: accuracy beside messages and bytes.

    python -m benchmarks.closed_form_cell RUN [--device cuda] [--json results/bench/closed_form_cell.json]
    python -m benchmarks.closed_form_cell --page results/bench/closed_form_cell.json

RUN is the folder of a trained run with a shared trunk, such as a CIFAR-10 cell. The features of all training samples
are computed once. Then router and class heads are fitted on them in several ways: in closed form by fed3r and fedlda,
each polished by 0, 1, 2 ... rounds, and by the exact fit of fit-router with bounds on its rounds (0: none). Every way
chooses among the same recipes. The joint model is left out, as in a deployed federation of this size, unless --joint
asks for it. Figures are written after every fit.

Counted is what one site would send in a deployed federation. A message is a reply of a site: its moments, or its
gradients of all fits that go on side by side, or its scores. The calibration is left out of all rows alike: it takes
some ten replies of a few numbers. The second command writes the table of docs/router_measured.md and
docs/closed_form.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.result import finish, show, write
from feddrm.engine import arithmetic, load_state
from feddrm.evaluation import predict
from feddrm.methods import ClosedFormMethod, Fed3R, FedLDA
from feddrm.moments import MomentTarget
from feddrm.report.figure_files import save_figure
from feddrm.router import FittedRouter, Recipe, RouterSettings, evaluate_router
from feddrm.router.features.base import Hidden
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import FitRequest, Job, Trunk
from feddrm.router.fit.feature_blocks import FeatureBlock
from feddrm.router.fit.fit_closed_form import ClosedForm
from feddrm.router.fit.fit_router import fit_cohort, worth_trying
from feddrm.router.fit.local_cohort import LocalCohort, LocalCorrections
from feddrm.router.settings import Holdout
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.runs import Run
from feddrm.runs.client_predictions import client_models, execution, pooled_test_set
from feddrm.runs.run_router import load_run_federation, saved_config
from feddrm.threads import router_kernels

POLISH, ROUNDS = (0, 1, 2, 5, 10, 20, 50, 100), (5, 20, 60, 0)
MIB = 2**20
FLOAT64 = 8


class CountingCohort(LocalCohort):
    """A local cohort that measures its features once and counts what one of its clients would send over a network."""

    messages, sent, rounds = 0, 0, 0

    def begin(self, messages: int = 0, sent: int = 0) -> None:
        """Count anew, from so many messages and bytes on."""
        self.messages, self.sent, self.rounds = messages, sent, 0

    def measure(self, recipe: Recipe, trunk: Trunk, holdout: Holdout) -> None:
        if not self._features:
            super().measure(recipe, trunk, holdout)

    def batches(self, jobs: Iterable[Job]) -> Iterator[Sequence[Job]]:
        """All jobs at once, as a remote cohort has them: they share their messages."""
        yield list(jobs)

    def gradients(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]
    ) -> dict[str, dict[int, ClientSums]]:
        answers = super().gradients(requests, points)
        self._count(sums for by_client in answers.values() for sums in by_client.values())
        self.rounds += 1
        return answers

    def scores(self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]) -> dict[str, ClientSums]:
        answers = super().scores(requests, points)
        self._count(answers.values())
        return answers

    def corrections(self, design: DesignMatrix, probes: Sequence[Tensor]) -> LocalCorrections:
        """Two messages without a weight: the scores of all ridges, and that the correction is kept."""
        self.messages += 2
        return super().corrections(design, probes)

    def _count(self, sums: Iterable[ClientSums]) -> None:
        self.messages += 1
        self.sent += sum(tensor.nbytes for each in sums for tensor in each.values())


class SameRecipes(ClosedForm):
    """A closed form whose router chooses among the recipes of the exact router: those without the class projection."""

    @cached_property
    def blocks(self) -> tuple[Mapping[MomentTarget, Mapping[str, FeatureBlock]], Mapping[MomentTarget, FeatureBlock]]:
        tried, best = self.chooser.choose(self.recipes)
        allowed = [b for b in tried["client"].values() if all(f.name != Hidden.name for f in b.recipe.features)]
        least = min(allowed, key=lambda block: block.choice.loss)
        return tried, {**best, "client": self.chooser.refined("client", least)}


class Cell:
    """A trained run: its features, and the answers of its models to the test set."""

    def __init__(self, path: Path, device: str, settings: RouterSettings) -> None:
        run = Run.open(path)
        federation = load_run_federation(run.folder, run.config, None)
        config = saved_config(run.config, federation, device)
        self.federation, self.settings = federation.to(config.device), settings
        state = load_state(run.folder.state_file, config.device)
        self.shared = state.shared
        self.net = config.build_net(federation).requires_grad_(False)
        self.test = pooled_test_set(config, self.federation, state.round)
        with arithmetic(config.precision, config.device).set():
            models = client_models(config.method, state)
            self.answers = predict(self.net, models, self.test, execution=execution(config, config.threads))
        self.cohort = CountingCohort(self.federation, settings)
        self.trunk, self.recipes, everything = worth_trying(
            Trunk(self.net, dict(self.shared)), self.cohort.facts, settings
        )
        self.closed_recipes = self._closed_recipes(everything)
        self.cohort.measure(everything, self.trunk, Holdout.suggested(self.cohort.facts.samples))
        self.width = sum(self.cohort.widths(everything).values())
        self.facts = {
            "run": {key: run.config[key] for key in ("data", "method", "model", "rounds", "seed")},
            "samples": self.cohort.facts.samples,
            "crops": self.cohort.crops,
            "test_samples": len(self.answers.labels),
            "clients": len(self.federation),
            "features": self.width,
        }

    def _closed_recipes(self, everything: Recipe) -> list[Recipe]:
        """Those of the exact fit and, for the class heads, all features; each feature also alone."""
        scale = self.cohort.facts.scale
        alone = [Recipe.parse(feature.name, *scale) for feature in everything.features]
        return list({recipe.name: recipe for recipe in (*alone, *self.recipes, everything)}.values())

    def closed_form(self, method: ClosedFormMethod) -> dict[str, Any]:
        self.cohort.begin()
        fitted = SameRecipes(self.cohort, self.trunk, method, self.closed_recipes).router()
        self.cohort.messages += 1
        self.cohort.sent += fitted.chosen["message"]["bytes"]
        return self._figures(fitted)

    def exact(self, rounds: int | None) -> dict[str, Any]:
        # Sums and sums of squares, by which features are standardised; then their second moments.
        self.cohort.begin(2, FLOAT64 * self.width * (2 + self.width))
        fitted = fit_cohort(self.cohort, self.trunk, replace(self.settings, rounds=rounds))
        return self._figures(fitted)

    def _figures(self, fitted: FittedRouter) -> dict[str, Any]:
        cohort, weights = self.cohort, self.federation.weights
        measured = evaluate_router(fitted, self.net, self.shared, self.test, self.answers, weights)
        system = measured["system_accuracy"]
        percent = {
            "own": measured["refit_oracle_accuracy"],  # every sample at its own client, by its refitted head
            "client": measured["client_accuracy"]["exact_density"],
            "system_trained": system["exact_density"],  # one client asked: its trained model answers
            "system_refit": system["refit_density"],  # one client asked: its refitted head answers
            "system_refit_all": system["refit_all"],
            "probe": system["global_probe"],
            "stacked": system.get("stacked"),
        }
        return {
            **{name: None if value is None else round(100 * value, 2) for name, value in percent.items()},
            "recipe": fitted.chosen["router"]["recipe"],
            "ridge": fitted.chosen["router"]["ridge"],
            "probe_recipe": fitted.chosen["probe"]["recipe"],
            "rounds": cohort.rounds,
            "messages": cohort.messages,
            "mib": round(cohort.sent / MIB, 2),
            # A deployed federation fits no competence, and the features are those of all fits.
            "seconds": round(sum(s for step, s in fitted.seconds.items() if step not in ("features", "competence")), 2),
        }


def compare(cell: Cell, polish: Sequence[int], rounds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One row per fit. The first fit is done twice: libraries load in it."""
    cell.closed_form(Fed3R())
    yield {"fit": "fed3r, ridge router", "polish": 0, **cell.closed_form(Fed3R(router="ridge"))}
    for method in (Fed3R, FedLDA):
        for count in polish:
            yield {"fit": method.name, "polish": count, **cell.closed_form(method(polish=count))}
    for bound in rounds:
        yield {"fit": "exact", "bound": bound or None, **cell.exact(bound or None)}


COLUMNS = {
    "rounds": "rounds",
    "messages": "messages",
    "mib": "MiB",
    "client": "client",
    "system_trained": "trained model",
    "system_refit": "refitted head",
    "system_refit_all": "all refitted heads",
    "probe": "global head",
    "stacked": "stacked",
    "seconds": "seconds",
}


def name_of(row: Mapping[str, Any]) -> str:
    """What a row is called in the table."""
    if row["fit"] == "exact":
        return "exact" if row["bound"] is None else f"exact, at most {row['bound']} rounds per fit"
    return row["fit"] + (f" --polish {row['polish']}" if row["polish"] else "")


def table(figures: Mapping[str, Any]) -> str:
    """The rows in Markdown, with what was measured, how, where and when."""
    run, versions = figures["run"], figures["versions"]
    lines = [
        f"{figures['samples']:,} training samples of {run['data']['name']} at {figures['clients']} clients "
        f"(random crops of each: {figures['crops']}), {figures['test_samples']:,} test samples, "
        f"{figures['features']:,} features of {run['model']['name']} after {run['rounds']} rounds of "
        f"{run['method']['name']} "
        f"(`{figures['command']}`, [figures](../results/bench/closed_form_cell.json); {figures['hardware']}, torch "
        f"{versions['torch']}, {figures['date']}):",
        "",
        f"| fit | {' | '.join(COLUMNS.values())} |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for row in figures["rows"]:
        values = [_shown(row[key]) for key in COLUMNS]
        lines.append(f"| {name_of(row)} | {' | '.join(values)} |")
    lines += ["", "![Accuracy against the messages that a site sends](closed_form.png)"]
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def curve(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy against the messages that a site sends."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = {"client": "client found (%)", "system_refit": "system accuracy, one refitted head asked (%)"}
    for axes, (key, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for fit in dict.fromkeys(row["fit"] for row in rows):
            points = sorted((row["messages"], row[key]) for row in rows if row["fit"] == fit)
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=fit)
        axes.set(xscale="log", xlabel="messages that a site sends", title=title)
        axes.title.set_size(10)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def write_page(source: Path, docs: Path) -> None:
    """Put the table between its marks in router_measured.md, and the curve beside it."""
    figures = json.loads(source.read_text())
    show(docs / "router_measured.md", "closed_form_cell", table(figures))
    save_figure(curve(figures["rows"]), docs / "closed_form.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--crops", type=int, help="of every training sample (default: 8 on a GPU, 1 on a CPU)")
    parser.add_argument("--polish", type=int, nargs="+", default=POLISH)
    parser.add_argument("--rounds", type=int, nargs="+", default=ROUNDS, help="bounds of the exact fit; 0: none")
    parser.add_argument("--joint", action="store_true", help="let the exact fit have a joint model, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, metavar="JSON", help="show these figures in the documentation")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if arguments.page is not None:
        write_page(arguments.page, arguments.docs)
        return
    if arguments.run is None:
        parser.error("give the folder of a trained run, or --page with the figures of one")
    command = " ".join(["python -m benchmarks.closed_form_cell", *sys.argv[1:]])
    cell = Cell(arguments.run, arguments.device, RouterSettings(crops=arguments.crops, joint=arguments.joint))
    figures: dict[str, Any] = {"command": command, **cell.facts, "rows": []}
    with router_kernels(cell.cohort.facts.samples):
        for row in compare(cell, arguments.polish, arguments.rounds):
            figures["rows"].append(row)
            print(row, flush=True)
            write(figures, arguments.json, arguments.device)
    finish(figures, arguments.json, arguments.device)


if __name__ == "__main__":
    main()
