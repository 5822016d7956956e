"""Every example of every ``--help`` parses, and those that are quick really run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer
from PIL import Image

from feddrm.cli import main
from feddrm.cli.app import app

GROUP = typer.main.get_command(app)
ELSEWHERE = {  # these run in tests of their own, or take minutes
    *("outcomes", "replay", "serve-promote", "serve-rollback", "drm drift", "drm tradeoff"),
    *("demo", "serve", "serve-client", "query", "bench engine", "bench serve", "bench deploy", "paper run"),
    *(
        "deploy up",
        "deploy run",
        "deploy status",
        "deploy down",
        "deploy server",
        "deploy site",
        "deploy audit",
        "paper figure",
        "tune",
    ),
}
SHORTER = {
    "train": ["--rounds", "2"],
    "fit-router": ["--no-heads"],
}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def example(command: click.Command) -> list[str]:
    (line,) = re.findall(r"^Example: (feddrm .*)$", command.help or "", flags=re.MULTILINE)
    return shlex.split(line)[1:]


COMMANDS = dict(commands(GROUP))
QUICK = [name for name in COMMANDS if name not in ELSEWHERE]  # in order: later ones use the files of earlier ones


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_of_its_command_and_parses(name: str) -> None:
    words = example(COMMANDS[name])
    depth = len(name.split())
    assert words[:depth] == name.split()
    with COMMANDS[name].make_context(name, words[depth:]):
        pass


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples, with the images and tables that they name."""
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / "scan.png")
    (folder / "scans-of-lyon").mkdir()
    for i in range(20):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / "scans-of-lyon" / f"{i}.png")
    for i, name in enumerate("abc"):
        np.savetxt(folder / f"{name}.csv", rng.normal(i / 2, 1, 60), header="x", comments="")
    rows = "".join(f"{i % 2},{20 + i},{('oslo', 'lima')[i % 3 == 0]}\n" for i in range(24))
    (folder / "visits.csv").write_text("outcome,age,hospital\n" + rows)
    (folder / "docs").mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.documented
@pytest.mark.parametrize("name", QUICK)
def test_quick_examples_run(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "router export":
        pytest.importorskip("onnxscript", reason="pip install 'feddrm[export]' to run this")
    if name == "drm example":  # it refuses to overwrite the files that other examples read
        workplace /= "empty"
        workplace.mkdir()
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "argv", ["feddrm", *example(COMMANDS[name]), *SHORTER.get(name, ())])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == 0, err
    assert out.strip()
