"""The run folder: who may hold and read which file, and what is refused rather than overwritten."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import feddrm
from commands import feddrm_command
from feddrm.data import Federation
from feddrm.engine import load_state
from feddrm.errors import FeddrmError
from feddrm.models import is_head
from feddrm.report.report_page import CSV, LATEX, write_report
from feddrm.report.run_table import report_table
from feddrm.router.artifact import HEADS, MANIFEST, ROUTER
from feddrm.runs import RunFolder, train
from runs.conftest import QUICK_FIT, SMALL, arrays, files


@pytest.mark.slow
def test_every_file_of_a_run_is_named_in_run_files(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddrm.report.report_page.report_page", lambda table: "page")  # drawn in other tests
    run = train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    run.fit_router(digits, features="raw", **QUICK_FIT)
    write_report(report_table([run.path]), run.path)
    named = {path for path in vars(run.folder).values() if path.is_file()}
    named |= {path for name in digits.names for path in vars(run.folder.client(name)).values() if path.is_file()}
    named |= {run.folder.router / name for name in (MANIFEST, ROUTER, HEADS)}
    named |= {run.path / name for name in (CSV, LATEX)}
    assert {path for path in run.path.rglob("*") if path.is_file()} == named


def test_the_server_holds_no_private_leaf_and_a_client_only_its_own(digits: Federation, tmp_path: Path) -> None:
    train(digits, "feddrm", out=tmp_path, **SMALL)
    shared = load_file(tmp_path / "router" / "shared.safetensors")
    assert shared
    assert not any(is_head(leaf) for leaf in shared)
    state = load_state(tmp_path / "checkpoint" / "state.safetensors")
    for i, name in enumerate(digits.names):
        own = load_file(tmp_path / "clients" / name / "private.safetensors")
        assert set(own) == {"model/head.weight", "model/head.bias"}
        assert torch.equal(own["model/head.weight"], state.private[i]["model"]["head.weight"])


@pytest.mark.slow
@pytest.mark.usefixtures("open_umask")
def test_private_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """This includes files that an older version left open. What the server may hold stays open."""
    out = tmp_path / "run"
    run = feddrm.train("digits", rounds=1, local_steps=2, data_settings={"clients": 3}, out=out)
    names = [path.name for path in (out / "clients").iterdir()]
    assert len(names) == 3
    old = out / "clients" / names[0] / "head.safetensors"
    old.write_bytes(b"")
    run.fit_router(features="raw", **QUICK_FIT)
    modes = {str(path.relative_to(out)): stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*") if path.is_file()}
    own = ("private.safetensors", "head.safetensors", "temperature.json")
    private = {f"clients/{n}/{file}" for n in names for file in own}
    private.add("checkpoint/state.safetensors")  # holds all of them
    assert {name for name, mode in modes.items() if mode == 0o600} == private
    assert modes["router/router.safetensors"] == modes["router/shared.safetensors"] == 0o666


def test_a_folder_is_resumed_or_refused_but_never_overwritten(digits: Federation, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = train(digits, "fedavg", out=out, **SMALL)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert train(digits, "fedavg", out=out, **SMALL).summary == first.summary
    with pytest.raises(FeddrmError, match=r"holds a run with rounds=4, not 5: choose another --out, or repeat"):
        train(digits, "fedavg", out=out, **{**SMALL, "rounds": 5})
    with pytest.raises(FeddrmError, match=r"holds a run with method="):
        train(digits, "feddrm", out=out, **SMALL)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    with pytest.raises(FeddrmError, match=r"other is not empty and no run: choose another --out"):
        train(digits, "fedavg", out=tmp_path / "other", **SMALL)
    with pytest.raises(FeddrmError, match=r"thesis.txt is a file: choose another --out"):
        train(digits, "fedavg", out=tmp_path / "other" / "thesis.txt", **SMALL)


def test_a_folder_without_any_round_is_taken_over(digits: Federation, tmp_path: Path) -> None:
    """As a process that was killed before the first round was over leaves it."""
    out = tmp_path / "run"

    def stop(played: Any, metrics: Any, rounds: int) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(digits, "fedavg", out=out, on_round=stop, **{**SMALL, "evaluation": {"window": 1, "every": 9}})
    assert {p.name for p in out.iterdir()} == {"config.yaml", "data.json", "data.safetensors", "checkpoint"}
    train(arrays(0), "feddrm", out=out, **SMALL)
    train(arrays(0), "feddrm", out=tmp_path / "new", **SMALL)
    assert files(out) == files(tmp_path / "new")


def test_a_start_that_was_killed_while_it_wrote_the_configuration_is_begun_anew(
    digits: Federation, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / "lock").touch()
    (tmp_path / "run" / ".config.yaml.part").write_text("data: {na")
    train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    train(digits, "fedavg", out=tmp_path / "new", **SMALL)
    assert files(tmp_path / "run") == files(tmp_path / "new")
    assert not (tmp_path / "run" / ".config.yaml.part").exists()


def test_a_configuration_that_no_training_wrote_is_not_replaced(digits: Federation, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lr: 0.2\n")
    with pytest.raises(FeddrmError, match=r"holds a run with .*: choose another --out"):
        train(digits, "fedavg", out=tmp_path, **SMALL)
    assert (tmp_path / "config.yaml").read_text() == "lr: 0.2\n"


@pytest.mark.parametrize("finished", [True, False])
def test_other_data_are_refused(finished: bool, tmp_path: Path) -> None:
    def stop(played: Any, metrics: Any, rounds: int) -> None:
        if not finished:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        train(arrays(0), "fedavg", out=tmp_path / "run", on_round=stop, **SMALL)
    assert (tmp_path / "run" / "summary.json").exists() == finished
    for other in (arrays(1), arrays(0, ("oslo", "rome")), arrays(0, label=1), arrays(0, ("oslo", "lima", "rome"))):
        with pytest.raises(FeddrmError, match=r"holds a run on other data of 'own' .*: choose another --out"):
            train(other, "fedavg", out=tmp_path / "run", **SMALL)
    facts = json.loads((tmp_path / "run" / "data.json").read_text())
    assert train(arrays(0), "fedavg", out=tmp_path / "run", **SMALL).summary is not None
    del facts["digest"]  # as older versions wrote it
    (tmp_path / "run" / "data.json").write_text(json.dumps(facts))
    assert train(arrays(0), "fedavg", out=tmp_path / "run", **SMALL).summary is not None


def test_a_finished_run_keeps_its_metrics_without_its_checkpoint(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    before = run.metrics()
    assert before
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert train(digits, "fedavg", out=tmp_path / "run", **SMALL).metrics() == before


@pytest.mark.slow
def test_a_second_process_is_refused_while_the_first_works(digits: Federation, tmp_path: Path) -> None:
    """The second is a real process. Once the first has ended, the folder is free again."""
    train(digits, "fedavg", out=tmp_path / "whole", **SMALL)
    seconds: list[subprocess.CompletedProcess[str]] = []

    def meanwhile(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2:
            seconds.append(feddrm_command("train", "--data", "digits", "--out", tmp_path / "run"))

    (tmp_path / "run" / "checkpoint").mkdir(parents=True)  # as a crash at the very start leaves it
    run = train(digits, "fedavg", out=tmp_path / "run", on_round=meanwhile, **SMALL)
    assert seconds[0].returncode == 1
    assert "another process is at work in" in seconds[0].stderr
    assert "Traceback" not in seconds[0].stderr
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    with RunFolder(run.path).exclusive(), pytest.raises(FeddrmError, match="another process is at work in"):
        run.fit_router(digits)


def test_training_works_on_a_disk_without_locks(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    assert train(digits, "fedavg", out=tmp_path / "run", **SMALL).summary is not None
