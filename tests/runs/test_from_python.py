"""``feddrm.train`` as Python's users call it: what it says, and what it takes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from feddrm.data import Federation, load
from feddrm.models import Mlp
from feddrm.runs import Run, train
from refusal import refused

SMALL = {"rounds": 4, "local_steps": 2, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(16,), branch=8)}


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=3, seed=3)


def test_progress_from_python_is_on_standard_error_and_only_where_asked(
    capsys: pytest.CaptureFixture[str], digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddrm.progress.SECONDS_BETWEEN_LINES", -1.0)
    run = train(digits, "fedavg", out=tmp_path / "loud", progress=True, **SMALL)
    run.fit_router(digits, heads=False, progress=True)
    out, err = capsys.readouterr()
    assert not out
    lines = err.splitlines()
    rounds = [line for line in lines if line.startswith("digits, fedavg: round ")]
    assert len(rounds) == len(run.metrics())
    assert f"round {SMALL['rounds']} of {SMALL['rounds']}, loss " in rounds[-1]
    assert all(line.startswith("fit router: ") for line in lines if line not in rounds)
    assert len(lines) > len(rounds)
    quiet = train(digits, "fedavg", out=tmp_path / "quiet", **SMALL)
    quiet.fit_router(digits, heads=False)
    assert capsys.readouterr() == ("", "")


def test_a_finished_run_keeps_its_curves_without_its_checkpoint(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    before = run.metrics()
    assert before
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert train(digits, "fedavg", out=tmp_path / "run", **SMALL).metrics() == before


def test_numbers_of_numpy_may_describe_a_federation(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    arrays = {"oslo": (x, y), "lima": (x + 1, y)}
    federation = Federation.from_arrays(arrays, seed=np.int64(3), test_fraction=np.float64(0.5))
    run = train(federation, "fedavg", out=tmp_path / "run", rounds=1)
    assert (run.config["data"]["seed"], run.config["data"]["test_fraction"]) == (3, 0.5)


def test_settings_of_data_that_are_made_already_are_refused(digits: Federation, tmp_path: Path) -> None:
    with refused("data_settings are for data given by name"):
        train(digits, "fedavg", out=tmp_path / "run", data_settings={"clients": 3}, **SMALL)


def test_a_configuration_that_was_spoilt_is_refused_in_words(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    file = run.path / "config.yaml"
    file.write_text(yaml.safe_dump({**run.config, "data": 1}))
    with refused("config.yaml has no settings under 'data'"):
        Run.open(run.path)
