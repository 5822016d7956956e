"""The training session: interrupted and killed runs, checkpoints, divergence, the summary."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import feddrm
from commands import FEDDRM, exit_code, fork, wait
from feddrm.data import Federation
from feddrm.engine import load_state
from feddrm.errors import FeddrmError
from feddrm.runs import Run, train, training_session
from feddrm.runs.training_session import TrainingSession
from runs.conftest import SMALL, crowd, files

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["feddrm", "fedavgft", "fedala"])
def test_a_run_stopped_after_any_round_resumes_bit_for_bit(
    method: str, digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "evaluation": {"window": 2, "every": 1}}
    whole = train(digits, method, out=tmp_path / "whole", **settings)

    class Cut(Exception):
        pass

    for cut in (1, 2, 3):

        def stop(played: Any, metrics: Any, rounds: int, cut: int = cut) -> None:
            if played.state.round == cut:
                raise Cut

        out = tmp_path / f"cut{cut}"
        monkeypatch.setattr(training_session, "CHECKPOINT_SECONDS", -1.0 if cut == 2 else 1e9)
        monkeypatch.setattr(training_session, "CHECKPOINT_SHARE", 1e9)
        with pytest.raises(Cut):
            train(digits, method, out=out, on_round=stop, **settings)
        assert not (out / "summary.json").exists()
        with (out / "metrics.jsonl").open("ab") as file:
            file.write(b'{"round": 99, "lo')  # as a crash in the middle of a line leaves it
        resumed = train(digits, method, out=out, **settings)
        assert files(out) == files(tmp_path / "whole")
        assert resumed.summary["communication"] == whole.summary["communication"]


def test_ctrl_c_saves_the_last_whole_round(digits: Federation, tmp_path: Path) -> None:
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
    really = TrainingSession.outcomes

    def interrupted(self: Any, state: Any) -> Any:
        if state.round == 3:
            raise KeyboardInterrupt
        return really(self, state)

    monkeypatch.setattr(TrainingSession, "outcomes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(digits, "fedavg", out=tmp_path / "cut", **settings)
    monkeypatch.setattr(TrainingSession, "outcomes", really)
    cut = train(digits, "fedavg", out=tmp_path / "cut", **settings)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert cut.summary is not None
    assert whole.summary is not None
    assert cut.summary["average_accuracy"] == whole.summary["average_accuracy"]


@pytest.mark.parametrize(("took", "rounds"), [(0.0, [22, 43, 50]), (1.23, [22, 47, 50])])
def test_checkpoints_take_a_twentieth_of_the_time_at_most(
    took: float, rounds: list[int], digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second a round by this clock: a save every 20 seconds, or 24.6 seconds after one that took 1.23."""
    now, saved = [0.0], []

    def save(folder: Any, state: Any) -> None:
        saved.append(state.round)
        now[0] += took

    def tick(*_: Any) -> None:
        now[0] += 1.0

    monkeypatch.setattr(training_session.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(training_session.RunFolder, "save", save)
    train(digits, "fedavg", out=tmp_path, on_round=tick, **{**SMALL, "rounds": 50})
    assert saved == rounds


def test_a_process_killed_at_any_moment_resumes_bit_for_bit(tmp_path: Path) -> None:
    """A real process, killed several times at arbitrary moments, ends with the same files."""
    words = "train --data digits --clients 3 --method feddrm --rounds 12 --local-steps 2 --batch-size 16 --seed 3"
    words += " --window 12 --set model.hidden=[16] --model mlp"
    script = (
        "from feddrm.runs import training_session as session; "
        "session.CHECKPOINT_SECONDS, session.CHECKPOINT_SHARE = 0.0, 1e9; " + FEDDRM
    )

    def start(out: Path) -> int:
        return fork(script, [*words.split(), "--out", out], Path(os.devnull), Path(os.devnull), tmp_path)

    assert wait(start(tmp_path / "whole")) == 0
    out, kills = tmp_path / "killed", 0
    for pause in (0.0, 0.05, 0.11, 0.02):
        process = start(out)
        seen = (out / "metrics.jsonl").stat().st_size if (out / "metrics.jsonl").exists() else 0
        while (code := exit_code(process)) is None:
            if (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > seen:
                time.sleep(pause)
                os.kill(process, signal.SIGKILL)
                code = wait(process)
                break
            time.sleep(0.005)
        kills += code == -signal.SIGKILL
    assert kills >= 2, "the run must really have been killed before it was done"
    assert wait(start(out)) == 0
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize(("rounds", "steps", "lr"), [(5, 2, 1e30), (1, 1, 1e300)])  # by the loss, by a parameter
def test_a_run_that_diverges_stops_and_writes_no_invalid_number(
    rounds: int, steps: int, lr: float, digits: Federation, tmp_path: Path
) -> None:
    settings = {**SMALL, "rounds": rounds, "local_steps": steps, "lr": lr, "evaluation": {"every": 1}}
    for _ in range(2):  # the same command resumes there and fails alike
        with pytest.raises(FeddrmError, match=r"loss is not finite after round \d: lower --lr \(it is 1e\+30"):
            train(digits, "fedavg", out=tmp_path / "run", **settings)
    run = Run.open(tmp_path / "run")
    assert run.summary is None
    text = (tmp_path / "run" / "metrics.jsonl").read_text() if (tmp_path / "run" / "metrics.jsonl").exists() else ""
    assert "NaN" not in text
    assert "Infinity" not in text
    file = tmp_path / "run" / "checkpoint" / "state.safetensors"
    assert (load_state(file).round if file.exists() else 0) == len(run.metrics()) < rounds


def test_a_full_disk_is_one_error_line_and_the_run_resumes_later(
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


def test_the_summary_averages_tuned_models_only(tmp_path: Path) -> None:
    run = feddrm.train("digits", "fedavgft", rounds=9, out=tmp_path / "run", evaluation={"every": 1})
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    tuned = [line["average_accuracy"] for line in lines if line["stage"] == "tune"]
    assert run.summary is not None
    assert 0 < len(tuned) == run.summary["window"] < 5  # five rounds at least are looked at
    assert run.summary["average_accuracy"]["mean"] == pytest.approx(sum(tuned) / len(tuned))


def test_the_figures_per_client_add_up_to_the_pooled_vote(tmp_path: Path) -> None:
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


def test_the_summary_has_metrics_of_every_clients_own_answers(digits: Federation, tmp_path: Path) -> None:
    run = train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    detail, last = json.loads((run.path / "evaluation.json").read_text()), run.metrics()[-1]
    assert run.summary is not None
    own = run.summary["metrics"]["own"]
    assert own["accuracy"]["value"] == last["oracle_accuracy"]
    worst = min(detail["per_client"], key=lambda row: row["own"])
    assert (own["worst_client"]["name"], own["worst_client"]["value"]) == (worst["name"], pytest.approx(worst["own"]))
    counts = torch.tensor(detail["class_confusion"]["own"])
    assert counts.trace() / counts.sum() == pytest.approx(last["oracle_accuracy"])
    recalls = counts.diagonal() / counts.sum(1)
    assert own["balanced_accuracy"]["value"] == pytest.approx(float(recalls.mean()))
    assert run.evaluate()["metrics"] == {"own": own}, "the last round, measured again"


def test_a_run_that_stays_at_one_answer_says_so(
    digits: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rate is far too large, the loss stays finite, and an average accuracy of 0.4 looks like learning."""
    settings = {"rounds": 6, "local_steps": 5, "evaluation": {"every": 1}}
    run = train(digits, "fedavgft", out=tmp_path / "run", lr=8.0, **settings)
    (record,) = caplog.records
    assert "gives one answer to all queries: lower --lr (it is 8)" in record.getMessage()
    assert run.summary is not None
    assert run.summary["collapsed"]["at_end"]
    assert run.metrics()[-1]["collapsed_share"] >= 0.5
    sound = train(digits, "fedavgft", out=tmp_path / "sound", lr=0.05, **settings)
    assert len(caplog.records) == 1
    assert sound.summary is not None
    assert "collapsed" not in sound.summary


def test_a_run_from_before_clip_and_warmup_goes_on(digits: Federation, tmp_path: Path) -> None:
    train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    assert {"clip", "warmup"}.isdisjoint(Run.open(tmp_path / "run").config)
    with pytest.raises(FeddrmError, match=r"holds a run with clip=None, not 1\.0"):
        train(digits, "feddrm", out=tmp_path / "run", clip=1.0, **SMALL)


def test_a_large_federation_resumes_bit_for_bit_and_equals_the_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "participation": 0.1, "evaluation": {"window": 1, "every": 4}}
    federation = crowd()
    whole = train(federation, "ditto", out=tmp_path / "whole", **settings)
    leaves = load_state(tmp_path / "whole" / "checkpoint" / "state.safetensors").shared.values()
    each, answers = 4 * sum(leaf.numel() for leaf in leaves), 4 * 10  # a tenth of 103 clients in every round
    assert whole.summary["communication"]["stages"]["train"]["downloads"] == answers
    assert whole.summary["communication"]["bytes_total"] == 2 * answers * each

    def stop(played: Any, metrics: Any, rounds: int) -> None:
        if played.state.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(federation, "ditto", out=tmp_path / "cut", on_round=stop, **settings)
    resumed = train(federation, "ditto", out=tmp_path / "cut", **settings)
    assert resumed.summary["communication"] == whole.summary["communication"]
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    monkeypatch.setattr(training_session, "SHARD_SIZE", 1000)  # all private slots in memory, as in older runs
    train(federation, "ditto", out=tmp_path / "memory", **settings)
    in_memory, on_disk = (
        load_state(tmp_path / name / "checkpoint" / "state.safetensors") for name in ("memory", "cut")
    )
    assert isinstance(in_memory.private, tuple)
    for one, other in zip(in_memory.private, on_disk.private, strict=True):
        assert {slot: list(leaves) for slot, leaves in one.items()} == {s: list(v) for s, v in other.items()}
        assert all(torch.equal(value, other[slot][leaf]) for slot, own in one.items() for leaf, value in own.items())
    assert files(tmp_path / "memory")["metrics.jsonl"] == files(tmp_path / "whole")["metrics.jsonl"]


def test_rounds_in_between_have_the_figures_of_their_participants(digits: Federation, tmp_path: Path) -> None:
    every = train(digits, "feddrm", out=tmp_path / "every", **SMALL, evaluation={"window": 4, "every": 1})
    some = train(
        digits, "feddrm", out=tmp_path / "some", **SMALL, evaluation={"window": 1, "every": 2, "participants": True}
    )
    whole, lines = every.metrics(), some.metrics()
    assert [line["round"] for line in lines if "participants" in line] == [1, 3]
    for line, complete in zip(lines, whole, strict=True):
        if "participants" not in line:
            assert line == complete
            continue
        figures = line["participants"]  # all clients take part, so these are figures of all
        assert figures["clients"] == 3
        for key in ("average_accuracy", "global_accuracy", "client_accuracy"):
            assert figures[key] == complete[key]
        assert "average_accuracy" not in line
    assert some.summary is not None
    assert some.summary["average_accuracy"] == {"mean": whole[-1]["average_accuracy"], "std": None}


def test_few_participants_are_averaged_by_their_own_weights(tmp_path: Path) -> None:
    federation, seen = crowd(), []
    train(
        federation, "fedavg", out=tmp_path, on_round=lambda result, metrics, _: seen.append((result, metrics)),
        **{**SMALL, "participation": 0.1}, evaluation={"window": 1, "every": 4, "participants": True},
    )  # fmt: skip
    result, metrics = seen[0]
    assert metrics["participants"]["clients"] == len(result.answered) == 10
    net = SMALL["model"].build(federation.shape, 2, None, 3).requires_grad_(False)
    right = []
    for number in result.answered:
        test = federation.clients[number].test
        logits = torch.func.functional_call(net, dict(result.state.shared), (test.x,)).logits
        right.append(float((logits.argmax(1) == test.y).double().mean()))
    assert metrics["participants"]["average_accuracy"] == pytest.approx(sum(right) / 10)
