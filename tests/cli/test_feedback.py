"""The commands that show and use what a gateway has learned."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")

from cli.conftest import assert_one_line, call
from feddrm.data import load
from feddrm.router.artifact import artifact_version
from feddrm.router.fit.fit_router import fit_router
from feddrm.router.settings import RouterSettings
from feddrm.serve.feedback.use_log import Outcome, Use, UseLog

DIGITS = load("digits", clients=3, seed=3)


@pytest.fixture
def use_log(tmp_path: Path) -> Path:
    """Four predictions with features, three of them with outcomes, by the router in ``run/router``."""
    fitted = fit_router(None, {}, DIGITS, RouterSettings(features="raw", heads=False))
    fitted.save(tmp_path / "run" / "router", {"name": "mlp"})
    features = fitted.router.features(DIGITS.clients[0].test.x[:4]).numpy()
    version = artifact_version(tmp_path / "run" / "router")
    log = UseLog(tmp_path / "uses", retention_days=1, max_rows=100, feature_rows=100)
    for i in range(4):
        log.add(Use(time.time(), str(i), 0, "predict", version, "fax", "1", 0.75, "", features[i].tobytes()))
    log.close()
    log.add_outcomes([Outcome("0", "1"), Outcome("1", "1"), Outcome("2", "3")])
    return tmp_path / "uses"


def test_outcomes_prints_the_table_of_the_use_log(use_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "outcomes", str(use_log))
    assert code == 0
    assert "calibration error" in out
    assert "0.6667" in out
    assert f"{2 / 3 - 0.75:.4f}".removeprefix("-") in out
    _, out, _ = call(capsys, "outcomes", str(use_log), "--json")
    (artifact,) = json.loads(out)["artifacts"]
    assert (artifact["predictions"], artifact["outcomes"], artifact["right"]) == (4, 3, 2)


def test_replay_counts_changed_decisions(use_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(use_log.parent / "run")
    code, out, _ = call(capsys, "replay", str(use_log), run, run)
    assert code == 0
    assert "0 of 4 decisions change" in out
    assert "3 queries have an outcome" in out
    _, out, _ = call(capsys, "replay", str(use_log), run, run, "--json")
    assert json.loads(out)["judged"] == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["outcomes", "nowhere"], "there is no use log nowhere"),
        (["replay", "nowhere", "run", "run"], "run"),
        (["serve-promote", "http://127.0.0.1:9"], "is it running"),
        (["serve-rollback", "http://127.0.0.1:9"], "is it running"),
    ],
)
def test_errors_are_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(call(capsys, *words), 1, says)
    assert not list(tmp_path.iterdir())
