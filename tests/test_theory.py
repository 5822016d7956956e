"""docs/theory.md: its commands and Python blocks run in order and print what the page shows; its prose agrees."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import call
from documentation import ROOT, assert_shown, blocks

pytestmark = pytest.mark.documented

TEXT = (ROOT / "docs" / "theory.md").read_text()
TRAINED = "percent right"  # in the one block whose figures depend on the processor
POINTS = 3  # by which they may differ: a patient or two per cell and seed
# Figures of the prose that no block prints, and where they come from.
DERIVED = {"13": "the factor 1.13", "2.7": "one of 37 patients"}


@pytest.mark.slow
@pytest.mark.data
def test_the_page_shows_what_is_printed(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDDRM_DATA", str(real_data.resolve()))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed, shown = "", 0
    for kind, body in blocks("docs/theory.md", "python", "console", "text"):
        if kind == "python":
            exec(body, names)
            printed = capsys.readouterr().out
        elif kind == "console":
            results = [call(capsys, *shlex.split(line)[1:]) for line in body.splitlines()]
            printed = "".join(out + err for _, out, err in results)
            assert all(code == 0 for code, _, _ in results) or printed.startswith("feddrm: error: "), printed
        else:
            assert_shown(body, printed, POINTS if TRAINED in body else 0)
            shown += 1
    assert shown == 14
    assert (tmp_path / "heart_age.png").stat().st_size > 10_000


def test_a_wrong_figure_on_the_page_is_found() -> None:
    assert_shown("a 1\n...\nc 3\n", "a 1  \nb 2\nc 3\n")
    for wrong in ("a 2\n", "c 3\n...\na 1\n", "a 1\nc 3\n"):
        with pytest.raises(AssertionError):
            assert_shown(wrong, "a 1\nb 2\nc 3\n")
    assert_shown("a  2\n...\nc 3.5\n", "a 3\nb 2\nc    3.0\n", points=1)
    for wrong in ("a 3.1\n", "a x\n", "a 2\nc 3\n", "a 1\n...\nc 0.5"):
        with pytest.raises(AssertionError):
            assert_shown(wrong, "a 2\nb 2\nc 3\n", points=1)


def test_figures_of_the_prose_are_those_of_the_blocks() -> None:
    """Every decimal number and every percentage up to section 11 is a printed one, perhaps rounded."""
    example = TEXT[: TEXT.index("## 12.")]
    printed = " ".join(body for _, body in blocks("docs/theory.md", "text"))
    values = np.array(re.findall(r"\d+(?:\.\d+)?(?:e[-+]\d+)?", printed), float)
    prose = re.sub(r"```.*?```|`[^`]*`", "", example, flags=re.DOTALL)
    figures = re.findall(r"(?<![\w.])\d+\.\d+(?![\d.])|\d+(?= %)", prose)
    assert len(figures) > 12
    for figure in figures:
        digits = len(figure.partition(".")[2])
        assert figure in DERIVED or float(figure) in values.round(digits), figure


def test_every_test_that_the_page_names_exists() -> None:
    folders = (ROOT / "tests" / name for name in ("drm", "comparison", "paper/experiments"))
    tests = "".join(path.read_text() for folder in folders for path in folder.rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", TEXT)
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_contents_link_to_every_section() -> None:
    sections = re.findall(r"^## (\d+)\. (.*)$", TEXT, flags=re.MULTILINE)
    listed = re.findall(r"^(\d+)\. \[(.*)\]\(#(\S+)\)$", TEXT, flags=re.MULTILINE)
    assert [(number, title) for number, title, _ in listed] == sections
    for number, title, anchor in listed:
        assert anchor == re.sub(r"[^\w -]", "", f"{number}. {title}".lower()).replace(" ", "-")
