"""What ``summary.json`` and ``evaluation.json`` are means of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import feddrm


def test_the_summary_is_of_tuned_models_alone(tmp_path: Path) -> None:
    run = feddrm.train("digits", "fedavgft", rounds=9, out=tmp_path / "run", evaluation={"every": 1})
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    tuned = [line["average_accuracy"] for line in lines if line["stage"] == "tune"]
    assert run.summary is not None
    assert 0 < len(tuned) == run.summary["window"] < 5  # five rounds at least are looked at
    assert run.summary["average_accuracy"]["mean"] == pytest.approx(sum(tuned) / len(tuned))


def test_clients_one_by_one_are_the_whole_by_the_same_tie_rule(tmp_path: Path) -> None:
    run = feddrm.train("digits", "local", rounds=2, out=tmp_path / "run", evaluation={"ties": "cuda"})
    detail = json.loads((run.path / "evaluation.json").read_text())
    rows = detail["per_client"]
    last = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    pooled = sum(row["test"] * row["vote"] for row in rows) / sum(row["test"] for row in rows)
    assert pooled == pytest.approx(last["system_accuracy"]["vote"])
    votes = detail["votes"]
    assert votes["cuda"] == last["system_accuracy"]["vote"]
    assert votes["smallest"] != votes["cuda"]  # a vote in which ties decide
    assert max(votes["smallest"], votes["cuda"]) < votes["leading"]
    assert abs(votes["smallest"] - votes["cuda"]) < votes["tied"]
