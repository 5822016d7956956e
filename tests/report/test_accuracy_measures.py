"""Tests of the accuracies' names and order."""

from __future__ import annotations

from pathlib import Path

from feddrm.report.accuracy_measures import Measure, Score, headline, read_scores


def test_the_headline_rule_is_fixed_in_advance_not_the_best() -> None:
    scores = {Measure("system", "vote"): Score(0.9), Measure("system", "head_density"): Score(0.1)}
    assert headline("system", scores) == Measure("system", "head_density")
    assert headline("client", scores) is None
    assert headline("system", {Measure("system", "new"): Score(0.1)}) == Measure("system", "new")


def test_absent_null_and_diverged_values_are_left_out() -> None:
    entry = {
        "average_accuracy": 0.5,
        "oracle_accuracy": None,
        "global_accuracy": float("nan"),
        "client_accuracy": None,
        "system_accuracy": {"vote": None, "brand_new": {"mean": 0.25, "std": 0.125}},
    }
    assert read_scores(entry, Path("x")) == {
        Measure("average"): Score(0.5),
        Measure("system", "brand_new"): Score(0.25, 0.125),
    }


def test_the_global_model_is_shown_once() -> None:
    both = {"global_accuracy": 0.5, "system_accuracy": {"global": 0.5}}
    assert read_scores(both, Path("x")) == {Measure("global"): Score(0.5)}
    assert read_scores({"system_accuracy": {"global": 0.5}}, Path("x")) == {Measure("global"): Score(0.5)}
    apart = read_scores({"global_accuracy": 0.5, "system_accuracy": {"global": 0.75}}, Path("x"))
    assert apart == {Measure("global"): Score(0.5), Measure("system", "global"): Score(0.75)}
