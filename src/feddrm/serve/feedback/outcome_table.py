"""Accuracy, calibration and abstention of a gateway's answers, over time and by artifact, from its use log."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feddrm.evaluation.answer_metrics import CONFIDENCE_BINS
from feddrm.serve.feedback.use_log import reading

PERIODS = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400)  # seconds
MOST_PERIODS = 30
LATEST = 1000  # outcomes that the gauges of the metrics look at

# The calibration error needs sums by bin of confidence only.
QUERY = f"""SELECT {{key}}, CAST(min(label_probability * {CONFIDENCE_BINS}, {CONFIDENCE_BINS - 1}) AS INTEGER) AS bin,
    count(*), sum(reason != ''), sum(outcome IS NOT NULL AND label IS NOT NULL), total(outcome = label),
    total(CASE WHEN outcome IS NOT NULL THEN label_probability END)
    FROM {{source}} WHERE action = 'predict' GROUP BY 1, 2 ORDER BY 1"""
LATEST_OUTCOMES = f"(SELECT * FROM uses WHERE outcome IS NOT NULL ORDER BY outcome_time DESC LIMIT {LATEST})"


@dataclass
class OutcomeFigures:
    """Counts of predictions; accuracy and calibration error of those that have a label and an outcome."""

    predictions: int = 0
    abstained: int = 0
    outcomes: int = 0
    right: int = 0
    gap: float = 0.0  # between the sums of confidence and of right answers, over all bins

    @property
    def accuracy(self) -> float | None:
        return self.right / self.outcomes if self.outcomes else None

    @property
    def calibration_error(self) -> float | None:
        return self.gap / self.outcomes if self.outcomes else None

    @property
    def abstention(self) -> float:
        return self.abstained / self.predictions

    def as_dict(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("accuracy", "calibration_error", "abstention")}
        return {name: value for name, value in asdict(self).items() if name != "gap"} | shares


def _figures(database: sqlite3.Connection, key: str, source: str = "uses") -> dict[Any, OutcomeFigures]:
    groups: dict[Any, OutcomeFigures] = {}
    rows: Iterable[tuple[Any, ...]] = database.execute(QUERY.format(key=key, source=source))
    for group, _, predictions, abstained, outcomes, right, sure in rows:
        figures = groups.setdefault(group, OutcomeFigures())
        figures.predictions += predictions
        figures.abstained += abstained
        figures.outcomes += outcomes
        figures.right += int(right)
        figures.gap += abs(sure - right) if outcomes else 0.0
    return groups


def outcome_table(path: Path) -> dict[str, Any]:
    """The figures of every period, the oldest first, and of every artifact; as plain values."""
    with reading(path) as database:
        (first, last) = database.execute("SELECT min(time), max(time) FROM uses WHERE action = 'predict'").fetchone()
        span = 0.0 if first is None else last - first
        period = next((seconds for seconds in PERIODS if span / seconds <= MOST_PERIODS), PERIODS[-1])
        by_period = _figures(database, f"CAST(time / {period} AS INTEGER) * {period}")
        by_artifact = _figures(database, "artifact")
    return {
        "seconds": period,
        "periods": [{"from": begin, **figures.as_dict()} for begin, figures in by_period.items()],
        "artifacts": [{"artifact": name, **figures.as_dict()} for name, figures in by_artifact.items()],
    }


def latest_figures(path: Path) -> dict[str, dict[str, Any]]:
    """The figures of the latest outcomes, by artifact."""
    with reading(path) as database:
        figures = _figures(database, "artifact", LATEST_OUTCOMES)
    return {artifact: values.as_dict() for artifact, values in figures.items()}


def period_name(begin: float) -> str:
    """The beginning of a period, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(begin))
