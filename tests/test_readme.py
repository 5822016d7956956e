"""Every command and the Python block of the README are executed, in its order."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from documentation import ROOT, command_words, run_command, run_script, scripts, write_inputs
from serving import launcher

pytestmark = pytest.mark.documented

README = (ROOT / "README.md").read_text()
COMMANDS = command_words("README.md")
URL = "http://127.0.0.1:8080"


def test_the_readme_is_short_and_calls_make_and_feddrm_only() -> None:
    assert 550 <= len(README.split()) <= 650
    assert [words[1] for words in COMMANDS if words[0] == "make"] == ["demo", "test"]
    assert {words[0] for words in COMMANDS} == {"make", "feddrm"}


@pytest.mark.slow
def test_training_and_serving_run(tmp_path: Path) -> None:
    """In a folder of a newcomer; the gateway and its clients are real processes."""
    write_inputs(tmp_path)
    done = []
    with contextmanager(launcher)(tmp_path) as launch:
        for words in (words for words in COMMANDS if words[0] == "feddrm" and words[1] != "deploy"):
            done.append(words[1])
            if words[1] == "serve":
                run = tmp_path / words[2]
                url = launch(words[1], run, *words[3:], "--port", 0).wait_ready()
            else:
                assert run_command([url if word == URL else word for word in words], tmp_path)
    assert done == ["train", "fit-router", "report", "predict", "serve", "query"]


def test_the_commands_that_deploy_are_those_of_the_page_about_it() -> None:
    """tests/deploy/test_docs_page.py runs them."""
    deploy = [words for words in COMMANDS if words[1] == "deploy"]
    page = [words for words in command_words("docs/deploy.md") if words in deploy]
    assert [words[2] for words in deploy] == ["init", "up", "run"]
    assert page == deploy
    assert ["feddrm", "deploy", "down", "federation"] in command_words("docs/deploy.md")
    assert "`feddrm deploy down federation`" in README.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["demo", "test"])
def test_every_make_target_is_known(target: str, tmp_path: Path) -> None:
    """The demo runs, with fewer rounds. Test would run this suite, so make only prints its commands."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for_real = target == "demo" and (ROOT / ".venv" / ".ready").exists()
    words = [f"DEMO=--rounds 2 --out {tmp_path}"] if for_real else ["--dry-run"]
    run = subprocess.run(["make", target, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"demo": "feddrm", "test": "pytest"}[target] in run.stdout
    if for_real:
        assert (tmp_path / "report.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".venv" / "bin" / "feddrm").exists(), reason="make has not made .venv")
def test_the_activated_environment_has_the_command() -> None:
    (activate,) = re.findall(r"`(source \S+)`", README)
    script = f"{activate} && command -v feddrm"
    run = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()).samefile(ROOT / ".venv" / "bin" / "feddrm")


def test_the_files_of_the_install_line_exist() -> None:
    (constraints, project) = re.search(r"`pip install --constraint\s(\S+) (\S+)`", README).groups()  # type: ignore[union-attr]
    assert (ROOT / constraints).is_file()
    assert (ROOT / project / "pyproject.toml").is_file()


@pytest.mark.slow
def test_the_script_runs(tmp_path: Path) -> None:
    (script,) = scripts("README.md")
    assert "flatbed" in run_script(script, tmp_path)


def test_the_demo_s_figures_are_those_of_the_page_with_all_of_them() -> None:
    """README rounds what docs/train.md shows: system, and how often the right client is named."""
    shown = re.findall(r"^\| \**((?:one|published|our) [a-z ]+)\** \|([^|]*)\|([^|]*)\|$", README, flags=re.MULTILINE)
    page = (ROOT / "docs" / "train.md").read_text()
    rows = {
        "one global model": r"`fedavg` \(one global model\)",
        "published router": r"`feddrm` \(published head, density rule\)",
        "our router": r"`feddrm` \(\*\*exact router\*\*, density rule\)",
    }
    assert [name for name, _, _ in shown] == list(rows)
    for name, right, named in shown:
        row = re.search(rf"^\| {rows[name]} \|(.*)\|$", page, flags=re.MULTILINE)
        assert row is not None
        _, system, client, *_ = (cell.strip(" *") for cell in row[1].split("|"))
        figures = [float(cell) for cell in (system, client) if cell != "-"]
        rounded = [float(cell.strip(" *%")) for cell in (right, named) if cell.strip()]
        assert rounded == pytest.approx(figures, abs=0.051)
