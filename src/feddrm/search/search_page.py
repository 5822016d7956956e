"""The page of a search: scores over the learning rate, accuracy round by round, and all trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from feddrm._version import __version__
from feddrm.report.html_templates import TEMPLATES
from feddrm.report.svg import SERIES, inline_svg
from feddrm.report.tables import DASH, Table
from feddrm.search.method_search import MethodSearch
from feddrm.search.trial import goal_scores

DASHES = ("-", "--", ":", "-.")


def search_page(searches: Sequence[MethodSearch]) -> str:
    """One HTML file with its figures inside."""
    data = searches[0].whole.data["name"]
    words = " and ".join(goal_scores(searches[0].task.goal))
    lead = (
        f"Settings compared by {words} accuracy on samples held out of the training data; test samples were not read. "
        f"Trials that do worse at a comparison stop there."
    )
    shown = [_shown(number, search) for number, search in enumerate(searches)]
    template = TEMPLATES.get_template("search.html.j2")
    return template.render(title=f"Search on {data}", lead=lead, searches=shown, version=__version__)


def _shown(number: int, search: MethodSearch) -> dict[str, Any]:
    found = search.verdict()
    pictures = [
        {
            "svg": inline_svg(lambda: _over_rate(search), f"rate{number}", "Score over the learning rate", found),
            "caption": "Score over the learning rate, at every comparison.",
        },
        {
            "svg": inline_svg(lambda: _over_rounds(search), f"round{number}", "Average accuracy by round", found),
            "caption": "Average accuracy on held-out samples, round by round.",
        },
    ]
    name = search.task.method.name
    return {"method": name, "found": found, "figures": pictures, "table": _table(search)}


def _over_rate(search: MethodSearch) -> Figure:
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.subplots()
    for place, rung in enumerate(search.halving.rungs):
        points = sorted(
            (trial.candidate.plan.get("lr", search.whole.plan.lr), 100 * trial.value(search.task.goal, rung.round))
            for trial in search.trials
            if rung.round in trial.scores
        )
        if points:
            look: dict[str, Any] = {
                "color": SERIES[place % len(SERIES)],
                "linestyle": DASHES[place % len(DASHES)],
                "marker": "o",
            }
            axes.plot(*zip(*points, strict=True), label=f"round {rung.round}", **look)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("percent")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return figure


def _over_rounds(search: MethodSearch) -> Figure:
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.subplots()
    for place, trial in enumerate(search.trials):
        if curve := trial.curve():
            rounds, values = zip(*curve, strict=True)
            look: dict[str, Any] = {
                "color": SERIES[place % len(SERIES)],
                "linestyle": DASHES[place // len(SERIES) % len(DASHES)],
            }
            axes.plot(rounds, [100 * value for value in values], label=trial.candidate.name, **look)
    axes.set_xlabel("round")
    axes.set_ylabel("percent")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    return figure


def _table(search: MethodSearch) -> Table:
    keys, front, rows = goal_scores(search.task.goal), search.front(), []
    for trial in search.trials:
        last = max(trial.scores, default=0)
        scores = [f"{100 * trial.scores[last][key]:.2f}" if last else DASH for key in keys]
        end = "on the front: no other is better in both" if trial in front else trial.end or DASH
        rows.append([trial.candidate.name, last or DASH, *scores, end])
    return Table.of(
        ["settings", "last compared at round", *keys, "ended"], rows, f"Trials of {search.task.method.name}"
    )
