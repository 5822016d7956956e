"""Tests of the accuracies' names and order."""

from __future__ import annotations

from feddrm.report.accuracy_measures import Measure, Score, headline


def test_the_headline_rule_is_fixed_in_advance_not_the_best() -> None:
    scores = {Measure("system", "vote"): Score(0.9), Measure("system", "head_density"): Score(0.1)}
    assert headline("system", scores) == Measure("system", "head_density")
    assert headline("client", scores) is None
    assert headline("system", {Measure("system", "new"): Score(0.1)}) == Measure("system", "new")
