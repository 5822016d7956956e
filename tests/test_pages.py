"""Every command and every Python block of README and docs is run by a test; here those of pages that need no server."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from documentation import (
    NOT_RUN,
    ROOT,
    command_lines,
    command_words,
    parse_command,
    run_command,
    run_script,
    scripts,
    write_inputs,
)
from patients import write_followup

pytestmark = pytest.mark.documented

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# What these functions hand out to the test that calls them with a page.
READERS = {"command_words": ["console"], "scripts": ["python"], "play_page": ["console", "python"]}


def readers() -> Iterator[tuple[str, str]]:
    """Page and kind of what tests ask for to run it."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(name), args=[ast.Constant(str(page)), *more]):
                    given = [word.value for word in more if isinstance(word, ast.Constant)]
                    for kind in READERS.get(name, given if name == "blocks" else []):
                        yield page, kind


def test_every_block_is_run() -> None:
    """A test that reads a page's commands by these functions gets all of them, but for those of NOT_RUN."""
    wanted = {(page, "console") for page in PAGES if command_words(page)}
    wanted |= {(page, "python") for page in PAGES if scripts(page)}
    assert len(wanted) > 15
    assert sorted(wanted - set(readers())) == []


def test_what_is_not_run_is_still_on_a_page_and_has_options_that_exist() -> None:
    left_out = [line for page in PAGES for line in command_lines(page) if line.startswith(tuple(NOT_RUN))]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in left_out)] == []
    for words in map(shlex.split, left_out):
        if words[0] == "feddrm":
            parse_command(words[1:])


def test_every_make_target_of_contributing_exists() -> None:
    """They are the tests and checks themselves."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = command_words("CONTRIBUTING.md")
    assert len(commands) >= 4
    assert [words for words in commands if words[0] != "make" or words[1] not in targets] == []


def play(commands: list[list[str]], folder: Path, **shorter: list[str]) -> dict[str, str]:
    """Run commands in one folder, with these further options; returns what each printed, by its line."""
    write_inputs(folder)
    return {shlex.join(words): run_command([*words, *shorter.get(words[1], ())], folder) for words in commands}


@pytest.mark.slow
def test_train(tmp_path: Path) -> None:
    printed = play(command_words("docs/train.md"), tmp_path, train=["--rounds", "3"], tune=["--rounds", "4"])
    assert "confree" in printed["feddrm methods"]
    (script,) = scripts("docs/train.md")
    assert run_script(script, tmp_path).count("0.") == 3


@pytest.mark.slow
def test_data(tmp_path: Path) -> None:
    play(command_words("docs/data.md"), tmp_path, train=["--rounds", "2"])
    (script,) = scripts("docs/data.md")
    assert "('oslo', 'lima')" in run_script(script, tmp_path)


@pytest.mark.slow
def test_files(tmp_path: Path) -> None:
    """A router's decision follows from its files by what the page says, with NumPy alone."""
    (script,) = scripts("docs/reference/files.md")
    assert run_script(script, tmp_path).strip() == "True"


@pytest.mark.slow
def test_recipes(tmp_path: Path) -> None:
    play(command_words("docs/recipes.md"), tmp_path, train=["--rounds", "2"])


@pytest.mark.slow
def test_paper(tmp_path: Path) -> None:
    play(command_words("docs/paper.md"), tmp_path)


@pytest.mark.slow
@pytest.mark.data
def test_survival(tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDRM_DATA", str(real_data.resolve()))
    table = (real_data / "tcga_brca" / "brca.csv").read_text().splitlines()
    (tmp_path / "patients.csv").write_text("\n".join(table[:4]) + "\n")
    write_followup(tmp_path / "followup.csv")
    play(command_words("docs/survival.md"), tmp_path, train=["--rounds", "2"])


@pytest.mark.slow
def test_containers(tmp_path: Path) -> None:
    """The keys; tests/test_packaging.py looks at the rest of the page."""
    folder, *keys = command_words("docs/containers.md")
    assert folder == ["mkdir", "keys"]
    (tmp_path / "keys").mkdir()
    play(keys, tmp_path)
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {"gateway.yaml", "predictors.yaml"}
