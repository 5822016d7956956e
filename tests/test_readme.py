"""Every command and every Python block of the README is executed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import feddrm_command
from documentation import ROOT, blocks

README = (ROOT / "README.md").read_text()
BLOCKS = blocks("README.md", "console", "python")
COMMANDS = [line for kind, body in BLOCKS if kind == "console" for line in body.splitlines() if line]
SCRIPTS = [body for kind, body in BLOCKS if kind == "python"]


def test_the_readme_has_commands_and_scripts() -> None:
    assert len(COMMANDS) >= 6
    assert SCRIPTS


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, in the README's order: later ones use the files of earlier ones."""
    folder = tmp_path_factory.mktemp("readme")
    rows = "".join(f"{i % 2},{i * 0.5},{('oslo', 'lima')[i % 3 == 0]}\n" for i in range(24))
    (folder / "visits.csv").write_text("outcome,age,hospital\n" + rows)
    for client in ("oslo", "lima"):
        for i in range(12):
            (kind := folder / "scans" / client / ("healthy", "sick")[i % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((16, 16), 10 * i, dtype=np.uint8)).save(kind / f"{i}.png")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(folder / "scan.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("feddrm ")])
def test_every_command_runs(command: str, workplace: Path) -> None:
    run = feddrm_command(*command.split()[1:], cwd=workplace)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert "rror" not in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("target", [c.split()[1] for c in COMMANDS if c.startswith("make ")])
def test_every_make_target_is_known(target: str, tmp_path: Path) -> None:
    """The demo runs, with fewer rounds. Lint and test would run this suite, so make only prints their commands."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for_real = target == "demo" and (ROOT / ".venv" / ".ready").exists()
    words = [f"DEMO=--rounds 2 --out {tmp_path}"] if for_real else ["--dry-run"]
    run = subprocess.run(["make", target, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"demo": "feddrm", "test": "pytest", "lint": "mypy"}[target] in run.stdout
    if for_real:
        assert (tmp_path / "report.html").stat().st_size > 100_000
        assert "oracle" in run.stdout


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".venv" / "bin" / "feddrm").exists(), reason="make has not made .venv")
def test_the_activated_environment_has_the_command() -> None:
    (activate,) = re.findall(r"`(source \S+)`", README)
    script = f"{activate} && command -v feddrm"
    run = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()).samefile(ROOT / ".venv" / "bin" / "feddrm")


def test_the_files_of_the_install_line_exist() -> None:
    (constraints, project) = re.search(r"`pip install --constraint (\S+) (\S+)`", README).groups()  # type: ignore[union-attr]
    assert (ROOT / constraints).is_file()
    assert (ROOT / project / "pyproject.toml").is_file()


def test_the_readme_calls_feddrm_and_make_only() -> None:
    assert {c.split()[0] for c in COMMANDS} <= {"feddrm", "make"}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_runs(script: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "('oslo', 'lima')" in run.stdout
