"""Mean and spread over the last rounds."""

from __future__ import annotations

from typing import Any

import pytest

from feddrm.errors import FeddrmError
from feddrm.evaluation import summarise


def test_closed_form() -> None:
    rounds = [{"average_accuracy": value, "system_accuracy": {"vote": 2 * value}} for value in (0.1, 0.2, 0.6)]
    summary = summarise(rounds)
    # Deviations -0.2, -0.1 and 0.3 of the mean 0.3: the population's variance is 0.14 / 3.
    assert summary["average_accuracy"] == pytest.approx({"mean": 0.3, "std": (0.14 / 3) ** 0.5}, rel=1e-12)
    assert summary["system_accuracy"]["vote"] == pytest.approx({"mean": 0.6, "std": 2 * (0.14 / 3) ** 0.5}, rel=1e-12)
    assert list(summary) == ["average_accuracy", "system_accuracy"]


def test_a_single_round_has_no_spread() -> None:
    assert summarise([{"a": 0.5}]) == {"a": {"mean": 0.5, "std": None}}


def test_what_is_none_or_missing_in_any_round_is_none() -> None:
    rounds: list[dict[str, Any]] = [
        {"always": None, "once": 0.5, "twice": 0.5, "client_accuracy": {}, "gone": {"x": 1.0}},
        {"always": None, "once": None, "client_accuracy": {}, "gone": None, "late": {"vote": 0.5}},
    ]
    assert summarise(rounds) == {
        "always": None,
        "once": None,
        "twice": None,
        "client_accuracy": {},
        "gone": None,
        "late": None,
    }
    nested: list[dict[str, Any]] = [{"s": {"vote": 0.5, "head": 0.25}}, {"s": {"vote": 0.5}}]
    assert summarise(nested) == {"s": {"vote": {"mean": 0.5, "std": 0.0}, "head": None}}


def test_values_other_than_numbers_are_left_out() -> None:
    assert summarise([{"stage": "tuning", "done": True, "list": [1], "n": 2}]) == {"n": {"mean": 2.0, "std": None}}


def test_no_rounds_are_refused() -> None:
    with pytest.raises(FeddrmError, match="no round"):
        summarise([])
