"""Tests of the figures of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from feddrm.report import run_figures
from feddrm.report.accuracy_measures import RULES, Measure
from feddrm.report.run_group import RunGroup, group_runs
from feddrm.report.run_record import ClientResult, RunRecord

MakeRun = Callable[..., Path]


def test_a_comparison_shows_only_the_main_rules(make_run: MakeRun) -> None:
    """With a router there are a dozen rules: so many marks on one line would hide each other."""
    folder = make_run("a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["system_accuracy"] |= {
        rule: {"mean": 0.5 + i / 100, "std": None} for i, rule in enumerate([*RULES, "my_rule"])
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    groups = group_runs([RunRecord.read(folder), RunRecord.read(make_run("b", method="fedavg"))])
    figure = run_figures.comparison_figure(groups)
    labels = [str(line.get_label()) for line in figure.axes[0].lines]
    rules = ("vote", "mean of all curves", "head, density", "exact, density", "stacked", "global probe", "my rule")
    assert labels == ["average", *(f"system ({rule})" for rule in rules), "global", "oracle"]
    looks = [(line.get_color(), line.get_marker()) for line in figure.axes[0].lines]
    assert len(set(looks)) == len(looks)


def test_legends_fit_their_figures(make_run: MakeRun) -> None:
    long = "a-rule-of-somebody-s-own-with-a-very-long-name"
    folder = make_run("a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["system_accuracy"] |= {f"{long}-{i}": {"mean": 0.5, "std": None} for i in range(5)}
    (folder / "summary.json").write_text(json.dumps(summary))
    record = RunRecord.read(folder)
    for figure in (
        run_figures.comparison_figure([RunGroup("a", (record,))]),
        run_figures.comparison_curves([RunGroup(long * 2, (record,))] * 5),
        run_figures.accuracy_figure(record),
    ):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_accuracy_over_megabytes_shows_the_runs_that_say_what_they_sent(make_run: MakeRun) -> None:
    folders = [make_run("_a", each=10**6), make_run("b", method="local", each=0), make_run("old", method="fedrep")]
    groups = group_runs([RunRecord.read(folder) for folder in folders])
    shown = run_figures.communication_groups(groups)
    assert [group.name for group in shown] == ["_a", "b"]
    lines = run_figures.communication_figure(shown).axes[0].lines
    assert [line.get_label() for line in lines] == [" _a", "b"]
    assert lines[0].get_xdata().tolist() == [4 * round for round in range(5, 61, 5)], "two clients, down and up"
    assert set(lines[1].get_xdata()) == {0}
    _, average = groups[0].first.curve(Measure("average"))
    assert lines[0].get_ydata().tolist() == [100 * value for value in average]


def test_runs_differ_by_more_than_colour(make_run: MakeRun) -> None:
    record = RunRecord.read(make_run("a"))
    lines = run_figures.comparison_curves([RunGroup(name, (record,)) for name in "abcd"]).axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 4


def test_bars_and_bands_are_the_spread_over_seeds(make_seeds: Callable[..., list[Path]], make_run: MakeRun) -> None:
    """A single run has neither: its spread over rounds is another quantity."""
    folders = [*make_seeds("a", [0.7, 0.72, 0.77]), make_run("b", method="fedavg")]
    groups = group_runs([RunRecord.read(folder) for folder in folders])
    figure = run_figures.comparison_figure(groups)
    average = Measure("average")
    (bars, *_) = (c for c in figure.axes[0].collections if isinstance(c, LineCollection))
    lengths = [float(np.ptp(segment[:, 0])) for segment in bars.get_segments()]
    std = groups[0].scores[average].std
    assert std is not None
    np.testing.assert_allclose(lengths, [2 * 100 * std, 0], atol=1e-9)
    left = run_figures.comparison_curves(groups).axes[0]
    rounds, means, spreads = groups[0].curve(average)
    assert np.array_equal(np.asarray(left.lines[0].get_ydata()), 100 * np.array(means))
    (band,) = left.collections
    top = max(point[1] for point in band.get_paths()[0].vertices)
    assert top == pytest.approx(100 * max(m + s for m, s in zip(means, spreads, strict=True)))
    assert rounds == list(range(5, 61, 5))


def test_long_names_do_not_shrink_the_diagram(make_run: MakeRun) -> None:
    def height(name: str) -> float:
        clients = [ClientResult(f"{name}{i}", 1, 1, {"own": 0.5}) for i in range(32)]
        figure = run_figures.client_figure(clients)
        figure.draw_without_rendering()
        return figure.axes[0].get_window_extent().height

    assert height("x" * 40) > 0.8 * height("x")


def test_figures_show_the_numbers(make_run: MakeRun) -> None:
    record = RunRecord.read(make_run("first"))
    lines = {line.get_label(): line for line in run_figures.accuracy_figure(record).axes[0].lines}
    rounds, values = record.curve(Measure("system", "vote"))
    assert np.asarray(lines["system (vote)"].get_xdata()).tolist() == rounds
    assert np.array_equal(np.asarray(lines["system (vote)"].get_ydata()), 100 * np.array(values))
    assert set(lines) == {
        *("average", "oracle", "global", "system (vote)", "system (head, density)", "system (head, posterior)")
    }
    looks = [(line.get_color(), line.get_linestyle()) for line in lines.values()]
    assert len({look[0] for look in looks}) == len(looks)
    (axes,) = run_figures.client_figure(record.clients).axes
    heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert heights == [100 * (c.values["own"] or 0) for c in record.clients]
    assert record.confusion is not None
    panels = run_figures.confusion_figure([c.name for c in record.clients], record.confusion).axes
    assert [axes.get_title() for axes in panels] == ["head, density", "head, posterior"]
    shown = np.asarray(panels[0].images[0].get_array())
    np.testing.assert_allclose(shown.sum(1), 100)
    odd = run_figures.confusion_figure("ab", {rule: np.eye(2, dtype=np.int64) for rule in ("a", "b", "c")})
    assert len(odd.axes) == 3
