"""Opening a run that was trained before."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from feddrm.data import Federation
from feddrm.errors import FeddrmError
from feddrm.runs import Run, RunFolder, train
from refusal import refused
from runs.conftest import SMALL, arrays


def test_opening_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FeddrmError, match=r"is no run \(it has no config.yaml\)"):
        Run.open(tmp_path)
    folder = RunFolder(tmp_path)
    folder.config_file.write_text("a: [")
    with pytest.raises(FeddrmError, match=r"config.yaml is broken \(line 1 is not YAML"):
        Run.open(tmp_path)
    with pytest.raises(FeddrmError, match=r"config.yaml is broken \(line 1 is not YAML"):
        train(arrays(0), out=tmp_path, **SMALL)


def test_a_damaged_configuration_is_refused(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    file = run.path / "config.yaml"
    for settings in ({**run.config, "data": 1}, {key: value for key, value in run.config.items() if key != "data"}):
        file.write_text(yaml.safe_dump(settings))
        with refused("config.yaml has no settings under 'data'"):
            Run.open(run.path)


def test_a_run_without_settings_of_evaluation_is_evaluated_as_a_new_one_would_be(
    digits: Federation, tmp_path: Path
) -> None:
    run = train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    plain = {key: value for key, value in run.config.items() if key != "evaluation"}
    (run.path / "config.yaml").write_text(yaml.safe_dump(plain))
    assert Run.open(run.path).evaluate(digits) == run.evaluate(digits)
    assert Run.open(run.path).fit_router(digits, features="raw", heads=False).names == digits.names


def test_a_run_that_was_just_trained_remembers_its_federation(tmp_path: Path) -> None:
    """A federation that was made in Python cannot be loaded again, so a run that was opened from disk needs it."""
    federation = arrays(0)
    run = train(federation, "fedavg", out=tmp_path / "run", **SMALL)
    assert run.fit_router(features="raw", heads=False).names == federation.names
    assert train(federation, "fedavg", out=tmp_path / "run", **SMALL).federation is federation  # finished before
    opened = Run.open(tmp_path / "run")
    assert (opened.federation, opened == run, len({opened, run})) == (None, True, 1)
    with refused("unknown dataset 'own'", "or give the federation"):
        opened.fit_router(features="raw", heads=False)
    with refused("other data of 'own'", "give the data that it was trained on"):
        run.fit_router(arrays(1), features="raw", heads=False)
    assert opened.fit_router(federation, features="raw", heads=False).names == federation.names
