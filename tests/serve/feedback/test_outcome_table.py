from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from feddrm.evaluation.answer_metrics import calibration_error
from feddrm.serve.feedback.outcome_table import LATEST, latest_figures, outcome_table, period_name
from feddrm.serve.feedback.use_log import Outcome, Use, UseLog


def use(name: str, when: float, artifact: str, sure: float | None) -> Use:
    label, reason = ("unlike", "x")[::-1] if sure is not None else (None, "unsure")
    return Use(when, name, 0, "predict", artifact, "oslo", label, sure, reason if sure is None else "")


def test_figures_over_time_and_by_artifact(tmp_path: Path) -> None:
    now = time.time()
    sure = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = torch.rand(300, generator=torch.Generator().manual_seed(1)) < 0.7
    log = UseLog(tmp_path / "uses.sqlite", retention_days=30, max_rows=1000)
    for i, value in enumerate(sure.tolist()):
        log.add(use(str(i), now - 3600 * (i % 3), "v1" if i < 200 else "v2", value))
    for i in range(20):
        log.add(use(f"abstained{i}", now, "v2", None))
    log.add(use("unknown", now, "v2", 0.5))  # no outcome: it counts as a prediction only
    log.add(use("routed", now, "v2", 0.5)._replace(action="route"))
    log.close()
    log.add_outcomes([Outcome(str(i), "x" if good else "y") for i, good in enumerate(right.tolist())])
    log.add_outcomes([Outcome("abstained0", "y")])
    table = outcome_table(log.path)
    assert table["seconds"] == 600
    assert [row["predictions"] for row in table["periods"]] == [100, 100, 121]
    assert [row["abstained"] for row in table["periods"]] == [0, 0, 20]
    first, second = table["artifacts"]
    assert (first["artifact"], first["outcomes"], first["right"]) == ("v1", 200, int(right[:200].sum()))
    expected = calibration_error(torch.ones(200, 1, dtype=torch.float64), sure[:200], right[:200])
    assert first["calibration_error"] == pytest.approx(float(expected))
    assert second["accuracy"] == pytest.approx(float(right[200:].double().mean()))
    assert second["abstention"] == pytest.approx(20 / 121)
    # The gauges look at the latest outcomes only; the abstention among them has no label.
    latest = latest_figures(log.path)
    assert (latest["v1"]["outcomes"], latest["v2"]["outcomes"], LATEST) == (200, 100, 1000)


def test_a_log_without_predictions_has_an_empty_table(tmp_path: Path) -> None:
    UseLog(tmp_path / "uses.sqlite", retention_days=30, max_rows=1000).close()
    assert outcome_table(tmp_path / "uses.sqlite") == {"seconds": 60, "periods": [], "artifacts": []}
    assert period_name(0) == "1970-01-01 00:00"
