"""The stories in docs/stories: every block runs, in order, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documentation import ROOT, play_page

pytestmark = pytest.mark.documented

STORIES = sorted((ROOT / "docs" / "stories").glob("*.md"))


@pytest.mark.slow
def test_the_researcher(tmp_path: Path) -> None:
    """Figures of trained networks may differ by two points on another processor."""
    play_page("docs/stories/researcher.md", tmp_path, points=2)
    assert (tmp_path / "runs" / "report.html").stat().st_size > 100_000
    assert (tmp_path / "runs" / "table.tex").exists()


@pytest.mark.slow
def test_the_statistician(tmp_path: Path) -> None:
    play_page("docs/stories/statistician.md", tmp_path)
    assert (tmp_path / "waiting.html").stat().st_size > 100_000
    assert (tmp_path / "waiting.png").stat().st_size > 10_000


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story_is_500_to_900_words_of_prose(story: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", story.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert 500 <= len(prose.replace("|", " ").split()) <= 900


def test_there_are_four_stories() -> None:
    assert [path.stem for path in STORIES] == ["analyst", "consortium", "researcher", "statistician"]
