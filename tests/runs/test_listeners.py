"""Listeners: progress on standard error and TensorBoard scalars."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddrm.data import Federation
from feddrm.runs import train
from runs.conftest import SMALL


@pytest.mark.slow
def test_progress_is_on_standard_error_and_only_if_asked_for(
    capsys: pytest.CaptureFixture[str], digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddrm.progress.SECONDS_BETWEEN_LINES", -1.0)
    run = train(digits, "fedavg", out=tmp_path / "loud", progress=True, **SMALL)
    run.fit_router(digits, features="raw", heads=False, progress=True)
    out, err = capsys.readouterr()
    assert not out
    lines = err.splitlines()
    rounds = [line for line in lines if line.startswith(f"digits, fedavg, seed {SMALL['seed']}: round ")]
    assert len(rounds) == len(run.metrics())
    assert f"round {SMALL['rounds']} of {SMALL['rounds']}, loss " in rounds[-1]
    assert all(line.startswith("fit router: ") for line in lines if line not in rounds)
    assert len(lines) > len(rounds)
    quiet = train(digits, "fedavg", out=tmp_path / "quiet", **SMALL)
    quiet.fit_router(digits, features="raw", heads=False)
    assert capsys.readouterr() == ("", "")


def test_tensorboard_gets_the_accuracies(digits: Federation, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(digits, "feddrm", out=tmp_path, track=True, **SMALL)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    last = events.Scalars("system_accuracy/head_density")[-1]
    assert last.step == 4
    assert last.value == pytest.approx(run.metrics()[-1]["system_accuracy"]["head_density"])
