from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import FEDDRM, exit_code, feddrm_command, fork, wait
from feddrm.cli import main

ROOT = Path(__file__).parents[2]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddrm", "paper", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_processes_on_one_folder_share_a_grid_and_survive_one_that_is_killed(here: Path) -> None:
    words = ["paper", "run", "--grid", "smoke", "--device", "cpu", "--no-router"]
    logs = [here / f"{number}.log" for number in range(3)]
    work = here / "runs" / "paper-smoke" / "work"
    processes = []
    for log in logs:
        processes.append(fork(FEDDRM, words, log, log.with_suffix(".errors")))
        if log is logs[0]:
            while not list(work.glob("*.lock")):  # the first one has begun a cell
                assert exit_code(processes[0]) is None, log.read_text()
                time.sleep(0.02)
    os.kill(processes[0], signal.SIGKILL)
    ended = [wait(process) for process in processes]
    assert ended == [-signal.SIGKILL, 0, 0], [path.read_text() for path in here.glob("*.errors")]
    last = feddrm_command(*words)  # takes what the others found locked
    results = sorted(path.stem for path in (here / "runs" / "paper-smoke" / "results").glob("*.json"))
    assert len(results) == 7
    assert "7 of 7 chosen cells done" in last.stdout
    told = "".join(log.read_text() for log in logs) + last.stdout
    assert {cell: told.count(f"{cell}: finished") for cell in results} == dict.fromkeys(results, 1)


@pytest.mark.slow
def test_the_smoke_grid_from_end_to_end(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of 'make paper-smoke', and that nothing of it lands among the results."""
    words = ("run", "--grid", "smoke", "--device", "cpu")
    code, out, _ = call(capsys, *words, "--only", "main", "--budget", "5m", "--no-router")
    assert code == 0
    assert "digits-spc5_fedavgft-tune3_seed2025: finished" in out
    assert "4 of 4 chosen cells done; results in runs/paper-smoke/results" in out
    assert not (here / "results").exists()
    code, out, _ = call(capsys, "list", "--grid", "smoke", "--json")
    cells = {cell["cell"]: cell for cell in json.loads(out)}
    assert len(cells) == 7
    assert cells["digits-dir0.3_feddrm-lam0.9_seed2025"]["state"] in ("done", "no router")
    assert cells["digits-dir0.3_feddrm-lam0.5_seed2025"]["state"] == "missing"
    assert cells["digits-dir0.3_feddrm-lam0.5_seed2025"]["seconds"] > 0  # estimated from the others
    assert cells["digits-dir0.3_feddrm-lam0.9_seed2025"]["used_by"] == ["feddrm", "lambda", "main"]
    code, out, _ = call(capsys, "list", "--grid", "smoke", "--only", "lambda")
    assert "1 of 2 cells done" in out
    code, out, _ = call(capsys, "table", "main", "--grid", "smoke", "--format", "csv")
    assert code == 0
    assert ",missing," not in out
    assert len(out.splitlines()) == 1 + 2 * 3 * 2
    code, out, _ = call(capsys, "figure", "lambda", "--grid", "smoke", "--out", "lambda.png")
    assert (code, out) == (0, "wrote lambda.png\n")
    assert (here / "lambda.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(capsys, "page", "--grid", "smoke")
    assert (code, out) == (0, "wrote runs/paper-smoke/results.md\n")
    page = (here / "runs" / "paper-smoke" / "results.md").read_text()
    assert "**4 of 7 cells** of the grid 'smoke', which is not the paper's," in page
    assert not (here / "docs").exists()
    code, out, _ = call(capsys, *words, "--only", "digits-spc5_feddrm", "--json")
    assert code == 0
    assert {outcome["event"] for outcome in json.loads(out)} <= {"router"}  # nothing is trained twice


def test_folders_that_cannot_be_written_are_refused_before_anything_is_trained(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "visits.csv").write_text("a\n")
    for option in ("--results", "--work"):
        code, out, err = call(capsys, "run", "--grid", "smoke", "--device", "cpu", option, "visits.csv")
        assert (code, out) == (1, "")
        assert "cannot write into visits.csv" in err
        assert err.count("\n") == 1
        assert not (here / "runs").exists()


def test_an_empty_start_is_honest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list")
    assert code == 0
    assert out.rstrip().endswith("0 of 158 cells done, 0 with the exact router")
    code, out, _ = call(capsys, "table", "main")
    assert code == 0
    assert "| FedDRM | missing (62.78) |" in out
    for form in ("latex", "csv", "html"):
        assert call(capsys, "table", "beyond", "--format", form)[0] == 0


def test_missing_data_is_said_and_nothing_else_is_touched(
    here: Path, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    code, out, err = call(capsys, "run", "--only", "retina", "--device", "cpu", "--budget", "1m")
    assert code == 1
    assert "left out: 11 cells, first retina_feddrm-lam0.9_seed2025 (no data: no 'retina_balanced'" in out
    assert err.count("\n") == 1
    assert not (here / "results").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "--budget", "soon"], 2, "--budget 'soon': give a time such as 25m"),
        (["run", "--only", "lamda"], 2, "did you mean 'lambda'?"),
        (["run", "--set", "rounds=3"], 2, "'rounds' belongs to the protocol"),
        (["run", "--seeds", "a,b"], 2, "--seeds 'a,b'"),
        (["table", "mian"], 2, "did you mean 'main'?"),
        (["table", "main", "--format", "xls"], 2, "unknown format 'xls'"),
        (["figure", "nothing"], 2, "unknown figure 'nothing'"),
        (["figure", "lambda"], 1, "no cell of 'lambda' has been run"),
        (["figure", "drift", "--out", "drift.gif"], 2, "end its name in .png"),
        (["list", "--grid", "smok"], 2, "unknown grid 'smok'"),
    ],
)
def test_mistakes(words: list[str], code: int, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got, out, err = call(capsys, *words)
    assert (got, out) == (code, "")
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.slow
def test_make_knows_the_smoke_run() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    run = subprocess.run(["make", "--dry-run", "paper-smoke"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "paper run --grid smoke" in run.stdout
    assert "results/paper" not in run.stdout
