"""Every command and every Python block of the README is executed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line for kind, body in BLOCKS if kind == "console" for line in body.splitlines() if line]
SCRIPTS = [body for kind, body in BLOCKS if kind == "python"]


def test_there_is_something_to_run() -> None:
    assert len(COMMANDS) >= 6
    assert SCRIPTS


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, in the README's order: later ones use what earlier ones made."""
    folder = tmp_path_factory.mktemp("readme")
    rows = "".join(f"{i % 2},{i * 0.5},{('oslo', 'lima')[i % 3 == 0]}\n" for i in range(24))
    (folder / "visits.csv").write_text("outcome,age,hospital\n" + rows)
    return folder


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("feddrm ")])
def test_commands(command: str, workplace: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=workplace, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert "rror" not in run.stderr


@pytest.mark.parametrize("target", [c.split()[1] for c in COMMANDS if c.startswith("make ")])
def test_make_targets(target: str, tmp_path: Path) -> None:
    """The demo runs (shortened); lint and test run this very suite, so make need only know what to do."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    really = target == "demo" and (ROOT / ".venv" / ".ready").exists()
    words = [f"DEMO=--rounds 2 --out {tmp_path}"] if really else ["--dry-run"]
    run = subprocess.run(["make", target, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"demo": "feddrm", "test": "pytest", "lint": "mypy"}[target] in run.stdout
    if really:
        assert (tmp_path / "report.html").stat().st_size > 100_000
        assert "oracle" in run.stdout


@pytest.mark.skipif(not (ROOT / ".venv" / "bin" / "feddrm").exists(), reason="make has not made .venv")
def test_activated_the_commands_are_found() -> None:
    (activate,) = re.findall(r"`(source \S+)`", README)
    script = f"{activate} && command -v feddrm"
    run = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()).samefile(ROOT / ".venv" / "bin" / "feddrm")


def test_the_install_line_names_what_is_here() -> None:
    (constraints, project) = re.search(r"`pip install --constraint (\S+) (\S+)`", README).groups()  # type: ignore[union-attr]
    assert (ROOT / constraints).is_file()
    assert (ROOT / project / "pyproject.toml").is_file()


def test_no_other_commands() -> None:
    assert {c.split()[0] for c in COMMANDS} <= {"feddrm", "make"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_python(script: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "('oslo', 'lima')" in run.stdout
