from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from feddrm.data import Federation, load
from feddrm.engine import load_state
from feddrm.errors import FeddrmError
from feddrm.methods import FedDRM, Method
from feddrm.models import Mlp, is_head
from feddrm.runs import Run, RunFolder, train
from feddrm.runs import run as run_module

SMALL = {"rounds": 4, "local_steps": 2, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(16,), branch=8)}


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=3, seed=3)


def files(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on when or how often a run was interrupted."""
    names = ["config.yaml", "metrics.jsonl", "evaluation.json", "data.json", "checkpoint/state.safetensors"]
    names += ["router/shared.safetensors"]
    names += [f"clients/{p.name}/private.safetensors" for p in sorted((folder / "clients").iterdir())]
    return {name: (folder / name).read_bytes() for name in names}


def test_the_folder_holds_what_it_should(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    assert run.summary is not None
    assert set(run.summary) >= {
        "average_accuracy", "oracle_accuracy", "global_accuracy", "client_accuracy", "system_accuracy",
        "window", "rounds", "seconds", "hardware", "versions", "date",
    }  # fmt: skip
    assert set(run.summary["system_accuracy"]) == {"vote", "head_density", "head_posterior"}
    assert set(run.summary["seconds"]) == {"train", "evaluate", "total"}
    assert all(0 <= v["mean"] <= 1 for v in run.summary["system_accuracy"].values())
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["method"] == {"name": "feddrm", "lam": 0.9}
    assert config["data"]["name"] == "digits"
    assert config["rounds"] == 4
    rounds = [entry["round"] for entry in run.metrics()]
    assert rounds[-1] == 4
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for i, row in enumerate(evaluation["confusion"]["head_density"]):
        assert sum(row) == len(digits.clients[i].test)
    assert [row["name"] for row in evaluation["per_client"]] == list(digits.names)


def test_the_server_holds_no_private_leaf_and_no_client_another_s(digits: Federation, tmp_path: Path) -> None:
    train(digits, "feddrm", out=tmp_path, **SMALL)
    shared = load_file(tmp_path / "router" / "shared.safetensors")
    assert shared
    assert not any(is_head(leaf) for leaf in shared)
    state = load_state(tmp_path / "checkpoint" / "state.safetensors")
    for i, name in enumerate(digits.names):
        own = load_file(tmp_path / "clients" / name / "private.safetensors")
        assert set(own) == {"model/head.weight", "model/head.bias"}
        assert torch.equal(own["model/head.weight"], state.private[i]["model"]["head.weight"])


def test_the_same_seed_gives_the_same_files(digits: Federation, tmp_path: Path) -> None:
    for name in "ab":
        train(digits, "feddrm", out=tmp_path / name, **SMALL)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    train(digits, "feddrm", out=tmp_path / "c", **{**SMALL, "seed": 4})
    assert files(tmp_path / "a")["metrics.jsonl"] != files(tmp_path / "c")["metrics.jsonl"]


@pytest.mark.parametrize("method", ["feddrm", "fedavgft", "fedala"])
def test_a_run_cut_short_after_any_round_resumes_bit_for_bit(
    method: str, digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "evaluation": {"window": 2, "every": 1}}
    train(digits, method, out=tmp_path / "whole", **settings)

    class Cut(Exception):
        pass

    for cut in (1, 2, 3):

        def stop(played: Any, metrics: Any, rounds: int, cut: int = cut) -> None:
            if played.state.round == cut:
                raise Cut

        out = tmp_path / f"cut{cut}"
        monkeypatch.setattr(run_module, "CHECKPOINT_SECONDS", -1.0 if cut == 2 else 1e9)
        monkeypatch.setattr(run_module, "CHECKPOINT_SHARE", 1e9)
        with pytest.raises(Cut):
            train(digits, method, out=out, on_round=stop, **settings)
        assert not (out / "summary.json").exists()
        with (out / "metrics.jsonl").open("ab") as file:
            file.write(b'{"round": 99, "lo')  # as a crash in the middle of a line would leave it
        train(digits, method, out=out, **settings)
        assert files(out) == files(tmp_path / "whole")


def test_ctrl_c_leaves_whole_rounds(digits: Federation, tmp_path: Path) -> None:
    def interrupt(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(digits, "fedavg", out=tmp_path / "cut", on_round=interrupt, **SMALL)
    assert load_state(tmp_path / "cut" / "checkpoint" / "state.safetensors").round == 2
    train(digits, "fedavg", out=tmp_path / "cut", **SMALL)
    train(digits, "fedavg", out=tmp_path / "whole", **SMALL)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_ctrl_c_during_an_evaluation_loses_no_round(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "evaluation": {"window": 2, "every": 1}}
    whole = train(digits, "fedavg", out=tmp_path / "whole", **settings)
    really = run_module._Training.answers

    def interrupted(self: Any, state: Any) -> Any:
        if state.round == 3:
            raise KeyboardInterrupt
        return really(self, state)

    monkeypatch.setattr(run_module._Training, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(digits, "fedavg", out=tmp_path / "cut", **settings)
    monkeypatch.setattr(run_module._Training, "answers", really)
    cut = train(digits, "fedavg", out=tmp_path / "cut", **settings)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert cut.summary is not None
    assert whole.summary is not None
    assert cut.summary["average_accuracy"] == whole.summary["average_accuracy"]


@pytest.mark.parametrize(("took", "rounds"), [(0.0, [22, 43, 50]), (1.23, [22, 47, 50])])
def test_checkpoints_cost_a_twentieth_of_the_time_at_most(
    took: float, rounds: list[int], digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second a round by this clock: a save every 20 seconds, or 24.6 seconds after one that took 1.23."""
    now, saved = [0.0], []

    def save(folder: Any, state: Any) -> None:
        saved.append(state.round)
        now[0] += took

    def tick(*_: Any) -> None:
        now[0] += 1.0

    monkeypatch.setattr(run_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(run_module.RunFolder, "save", save)
    train(digits, "fedavg", out=tmp_path, on_round=tick, **{**SMALL, "rounds": 50})
    assert saved == rounds


def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """A real process, killed again and again at arbitrary moments, ends with the same files."""
    words = "train --data digits --clients 3 --method feddrm --rounds 12 --local-steps 2 --batch-size 16 --seed 3"
    words += " --window 12 --set model.hidden=[16] --model mlp"
    script = (
        "import sys; from feddrm.runs import run; run.CHECKPOINT_SECONDS, run.CHECKPOINT_SHARE = 0.0, 1e9; "
        f"sys.argv = ['feddrm', *{words.split()!r}, '--out', sys.argv[1]]; from feddrm.cli import main; main()"
    )

    def start(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    assert start(tmp_path / "whole").wait() == 0
    out, kills = tmp_path / "killed", 0
    for pause in (0.0, 0.05, 0.11, 0.02):
        process = start(out)
        seen = (out / "metrics.jsonl").stat().st_size if (out / "metrics.jsonl").exists() else 0
        while process.poll() is None:
            if (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > seen:
                time.sleep(pause)
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.005)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 2, "the run must really have been killed before it was done"
    assert start(out).wait() == 0
    assert files(out) == files(tmp_path / "whole")


def test_folders_are_resumed_or_refused_never_overwritten(digits: Federation, tmp_path: Path) -> None:
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


def arrays(seed: int, names: tuple[str, ...] = ("oslo", "lima"), label: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    x = {name: rng.normal(size=(20, 3)) for name in names}
    y = {name: [label, *(i % 2 for i in range(19))] for name in names}
    return Federation.from_arrays({name: (x[name], y[name]) for name in names})


@pytest.mark.parametrize("finished", [True, False])
def test_other_data_in_a_run_s_folder_are_refused(finished: bool, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("rounds", "steps", "lr"), [(5, 2, 1e30), (1, 1, 1e300)])  # by the loss, by a parameter
def test_a_run_that_diverges_stops_and_leaves_nothing_invalid(
    rounds: int, steps: int, lr: float, digits: Federation, tmp_path: Path
) -> None:
    settings = {**SMALL, "rounds": rounds, "local_steps": steps, "lr": lr, "evaluation": {"every": 1}}
    for _ in range(2):  # the same command goes on from there, and says the same
        with pytest.raises(FeddrmError, match=r"loss is not finite after round \d: lower --lr \(it is 1e\+30"):
            train(digits, "fedavg", out=tmp_path / "run", **settings)
    run = Run.open(tmp_path / "run")
    assert run.summary is None
    text = (tmp_path / "run" / "metrics.jsonl").read_text() if (tmp_path / "run" / "metrics.jsonl").exists() else ""
    assert "NaN" not in text
    assert "Infinity" not in text
    state = load_state(tmp_path / "run" / "checkpoint" / "state.safetensors")
    assert state.round == len(run.metrics()) < rounds


def test_two_processes_never_share_a_folder(digits: Federation, tmp_path: Path) -> None:
    """A real second process: refused in one line while the first works, let in once it is gone."""
    train(digits, "fedavg", out=tmp_path / "whole", **SMALL)
    script = (
        "import sys; from feddrm.cli import main; "
        "sys.argv = ['feddrm', 'train', '--data', 'digits', '--out', sys.argv[1]]; main()"
    )
    said = []

    def meanwhile(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2:
            second = [sys.executable, "-c", script, str(tmp_path / "run")]
            said.append(subprocess.run(second, capture_output=True, text=True, check=False))

    (tmp_path / "run" / "checkpoint").mkdir(parents=True)  # as a crash before anything else would leave it
    run = train(digits, "fedavg", out=tmp_path / "run", on_round=meanwhile, **SMALL)
    assert said[0].returncode == 1
    assert "another process is at work in" in said[0].stderr
    assert "Traceback" not in said[0].stderr
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    with RunFolder(run.path).alone(), pytest.raises(FeddrmError, match="another process is at work in"):
        run.fit_router(digits)


def test_a_disk_without_locks_still_trains(digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    assert train(digits, "fedavg", out=tmp_path / "run", **SMALL).summary is not None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "fedavgg"}, "unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"method": FedDRM(lam=1.5), "rounds": 3}, "lam=1.5"),
        ({"method": Method.make("fedavgft", tuning=9), "rounds": 3}, "9 fine-tuning rounds do not fit into 3 rounds"),
        ({"model": "resnet"}, "unknown model 'resnet'; did you mean 'resnet18'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"round": 3}, "no training setting 'round'; did you mean 'rounds'"),
        ({"participation": 0.0}, "participation=0.0"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_loaded(
    settings: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "load", lambda *a, **k: pytest.fail("data were loaded"))
    with pytest.raises(FeddrmError, match=says):
        train("digits", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_said_in_one_line_and_the_run_goes_on_later(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FeddrmError, match=r"cannot write .* \(No space left on device\): free the disk"):
        train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    monkeypatch.setattr(os, "fsync", real)
    train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    train(digits, "feddrm", out=tmp_path / "whole", **SMALL)
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_clients_side_by_side_change_no_bit(digits: Federation, tmp_path: Path) -> None:
    for threads in (1, 3):
        train(digits, "feddrm", out=tmp_path / str(threads), threads=threads, **SMALL)
    one, three = files(tmp_path / "1"), files(tmp_path / "3")
    assert one.pop("config.yaml") != three.pop("config.yaml")
    assert one == three


def test_a_run_goes_on_with_more_threads(digits: Federation, tmp_path: Path) -> None:
    def interrupt(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(digits, "feddrm", out=tmp_path / "cut", on_round=interrupt, threads=1, **SMALL)
    train(digits, "feddrm", out=tmp_path / "cut", threads=2, **SMALL)
    train(digits, "feddrm", out=tmp_path / "whole", threads=1, **SMALL)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_partial_participation_is_in_the_metrics(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "feddrm", out=tmp_path, participation=0.5, evaluation={"every": 1}, **SMALL)
    assert all(len(entry["answered"]) == 2 for entry in run.metrics())
    assert len({tuple(entry["answered"]) for entry in run.metrics()}) > 1


def test_tensorboard_scalars(digits: Federation, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(digits, "feddrm", out=tmp_path, track=True, **SMALL)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    last = events.Scalars("system_accuracy/head_density")[-1]
    assert last.step == 4
    assert last.value == pytest.approx(run.metrics()[-1]["system_accuracy"]["head_density"])


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FeddrmError, match=r"is no run \(it has no config.yaml\)"):
        Run.open(tmp_path)
    folder = RunFolder(tmp_path)
    folder.config_file.write_text("a: [")
    with pytest.raises(FeddrmError, match=r"config.yaml is broken \(line 1 is not YAML"):
        Run.open(tmp_path)
    with pytest.raises(FeddrmError, match=r"config.yaml is broken \(line 1 is not YAML"):
        train(arrays(0), out=tmp_path, **SMALL)
