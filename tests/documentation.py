"""The code blocks of the documentation, for the tests that run them (tests/test_pages.py says that all are run)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import typer.main
from click import Context, Group
from PIL import Image

from commands import feddrm_command, python_script
from feddrm.cli.app import app

ROOT = Path(__file__).parent.parent
SHELL = ("console", "shell", "bash")
# The beginning of a command that no test runs as it stands, and why. What feddrm does in them is tried elsewhere.
NOT_RUN = {
    "docker ": "needs a container daemon; tests/test_packaging.py checks image and compose files",
    "export ": "for docker compose",
    "sudo ": "installs a unit; tests/test_packaging.py checks the units",
    "kubectl ": "needs a cluster; tests/test_packaging.py checks the manifests",
    "FEDDRM_KEY=... ": "asks the gateway of the compose file",
    "feddrm deploy init federation --clients oslo,lima,pune --data digits --host server": "for docker compose",
    "feddrm serve RUN --clients clients.yaml --host 0.0.0.0": "needs an issuer; tests/serve/oidc has one of its own",
    "feddrm serve runs/first --demo --trace-endpoint": "needs a collector; tests/serve/telemetry has one of its own",
    "feddrm train --data cifar10 --clients 1000": "needs a GPU",
}
# Scripts for several GPUs and for a cluster. tests/cli/test_paper.py shares a grid among processes.
NOT_RUN_SCRIPTS = ("for gpu in", "#!/bin/bash")


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """The kind and the text of every block of these kinds (``console``, ``python``, ...), in the page's order."""
    return re.findall(rf"^```({'|'.join(kinds)})\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def command_lines(page: str) -> list[str]:
    """Every command in the page's console and shell blocks; a line that ends with a backslash goes on in the next."""
    bodies = [body for _, body in blocks(page, *SHELL) if not body.startswith(NOT_RUN_SCRIPTS)]
    return [line for body in bodies for line in re.sub(r"\\\n *", "", body).splitlines() if line]


def command_words(page: str) -> list[list[str]]:
    """The words of every command that a test must run."""
    return [shlex.split(line) for line in command_lines(page) if not line.startswith(tuple(NOT_RUN))]


def scripts(page: str) -> list[str]:
    """The page's Python blocks."""
    return [body for _, body in blocks(page, "python")]


def parse_command(words: list[str]) -> None:
    """Read the words after ``feddrm`` as the program does, without running it: every option must exist."""
    command = typer.main.get_command(app)
    while isinstance(command, Group):
        name, *words = words
        found = command.get_command(Context(command), name)
        assert found is not None, f"there is no command {name!r}"
        command = found
    command.make_context("feddrm", list(words))


def write_inputs(folder: Path) -> None:
    """The files that commands of the pages read: a picture, pictures in folders, a table."""
    rows = "".join(f"{i % 2},{20 + i},{('oslo', 'lima')[i % 3 == 0]}\n" for i in range(24))
    (folder / "visits.csv").write_text("outcome,age,hospital\n" + rows)
    for client in ("oslo", "lima"):
        for i in range(12):
            (kind := folder / "scans" / client / ("healthy", "sick")[i % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((16, 16), 10 * i, dtype=np.uint8)).save(kind / f"{i}.png")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(folder / "scan.png")


def run_command(words: list[str], folder: Path) -> str:
    """Run a feddrm command, which must succeed without a word of an error; returns what it prints."""
    run = feddrm_command(*words[1:], cwd=folder)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert "rror" not in run.stderr
    return run.stdout


def run_script(script: str, folder: Path) -> str:
    """Run a Python block in the folder, with warnings as errors; returns what it prints."""
    run = python_script(f"import warnings\nwarnings.simplefilter('error')\n{script}", cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout


def assert_shown(body: str, printed: str, points: float = 0) -> None:
    """The page's lines were printed, in this order; a line of three dots stands for others.

    Percentages may differ by ``points``, and shares by as much: figures of a trained network depend on the processor.
    """
    text = "\n".join(line.rstrip() for line in printed.splitlines())
    place = 0
    for part in re.split(r"^\.\.\.\n", body, flags=re.MULTILINE):
        pattern = re.escape(part.rstrip("\n"))
        if points:
            pattern = re.sub(r"(?:\\ )*\d+(?:\\\.\d+)?", r" *(\\d+(?:\\.\\d+)?)", pattern)
        found = re.compile(pattern).search(text, place)
        assert found, f"this was not printed:\n{part}\nbut this:\n{text}"
        shown = re.findall(r"\d+(?:\.\d+)?", part) if points else []
        for wanted, got in zip(map(float, shown), map(float, found.groups()), strict=True):
            assert abs(got - wanted) <= (points if wanted > 1 else points / 100), f"{got} in place of {wanted}:\n{part}"
        place = found.end()


def play_page(page: str, folder: Path, points: float = 0) -> None:
    """Run all blocks of a page, in its order, in one folder.

    A block after "This is `NAME`:" is a file. Others are commands and Python scripts; a block of text shows what the
    one before it prints.
    """
    printed = ""
    pattern = r"(?:This is\s`([\w./-]+)`:\n\n)?^```(\w+)\n(.*?)^```"
    for name, kind, body in re.findall(pattern, (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE):
        if name:
            (folder / name).write_text(body)
        elif kind in SHELL:
            printed = "".join(run_command(shlex.split(line), folder) for line in body.splitlines())
        elif kind == "python":
            printed = run_script(body, folder)
        else:
            assert kind == "text", f"{page}: what is a block of {kind}?"
            assert_shown(body, printed, points)
