"""The ``feddrm`` command as a whole: listings, help, completion, exit codes and one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import assert_one_line, call
from commands import FEDDRM, fork, wait
from feddrm.data import Dataset
from feddrm.methods import Method
from feddrm.models import Model


def test_listings_name_every_dataset_model_and_method(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, family in (
        ("datasets", Dataset.family),
        ("models", Model.family),
        ("methods", Method.family),
    ):
        code, out, err = call(capsys, verb)
        assert (code, err) == (0, "")
        assert all(re.search(rf"^ *{name} ", out, re.MULTILINE) for name in family)
        code, out, _ = call(capsys, verb, "--json")
        assert json.loads(out) == {name: member.summary() for name, member in family.items()}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["dance"], 2, "No such command 'dance'"),
        (["paper", "run", "--grid", "smoke", "--set", "threads=x"], 2, "threads='x': give a whole number"),
        (["evaluate", "nowhere"], 1, "nowhere is no run"),
        (["report", "nowhere"], 1, "nowhere"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    assert_one_line(call(capsys, *words), code, says)


@pytest.mark.parametrize("words", [[], ["paper"], ["data"], ["router"]], ids=str)
def test_a_group_without_a_command_prints_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = call(capsys, *words)
    shown = out + err
    assert shown.startswith("Usage: feddrm ")
    assert "error" not in shown.splitlines()[0]
    assert re.search(r"^Commands:$", shown, re.MULTILINE)


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"_FEDDRM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        run = subprocess.run(
            [sys.executable, "-m", "feddrm"], env=os.environ | words, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    assert completed("feddrm pa") == ["paper"]
    assert completed("feddrm train --me") == ["--method"]


@pytest.mark.usefixtures("sigint")
def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dataset.find("digits"), "load", lambda _: signal.raise_signal(signal.SIGINT))
    assert call(capsys, "data", "info", "digits") == (130, "", "feddrm: error: interrupted\n")


def commands() -> list[list[str]]:
    verbs = ["datasets", "models", "methods", "data info", "data show", "train", "evaluate", "report", "demo"]
    return [verb.split() for verb in verbs]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_prints_the_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *words, "--help")
    assert code == 0
    assert f"Example: feddrm {' '.join(words)}" in " ".join(out.split())
    assert "\\" not in out


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["methods"], ["models", "--json"], ["datasets"]], ids=" ".join)
def test_listings_do_not_wait_for_torch(words: list[str]) -> None:
    script = f"import sys; sys.argv = ['feddrm', *{words}]; from feddrm.cli.app import app; app(standalone_mode=False)"
    asked = f"{script}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "False False"


@pytest.mark.slow
def test_the_version_and_a_closed_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--version")
    assert (code, out.split()[0]) == (0, "feddrm")
    pipe = subprocess.run(
        f"{sys.executable} -m feddrm data info digits --json | head -n 1", shell=True, capture_output=True, check=True
    )
    assert pipe.stderr == b""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["methods", "methods --json", "--version"])
def test_a_full_disk_is_one_line(words: str, tmp_path: Path) -> None:
    assert wait(fork(FEDDRM, words.split(), Path("/dev/full"), tmp_path / "log")) == 1
    assert (tmp_path / "log").read_text() == (
        "feddrm: error: cannot write the output (No space left on device): free the disk or write elsewhere\n"
    )
