"""The drawings of the documentation: they show what is there, ask nobody for anything, and come from a run."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from test_benchmarks import run_benchmark

pytestmark = pytest.mark.documented

ROOT = Path(__file__).parent.parent
DRAWINGS = sorted((ROOT / "docs").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing: Path) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.parse(drawing).iter(f"{SVG}text")]


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_complete_in_itself_and_described(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    assert not list(root.iter(f"{SVG}script"))
    assert all(image.get("href", "").startswith("data:image/png") for image in root.iter(f"{SVG}image"))
    assert re.findall(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", drawing.read_text()) == []
    described = [str(root.findtext(f"{SVG}{part}")) for part in ("title", "desc")]
    assert all(len(text) > 20 for text in described)
    assert "prefers-color-scheme: dark" in drawing.read_text()


def test_the_architecture_shows_packages_that_exist() -> None:
    named = {word for text in texts(ROOT / "docs/architecture.svg") for word in re.findall(r"[a-z_/]+/(?= |$)", text)}
    assert len(named) >= 8
    assert [name for name in sorted(named) if not (ROOT / "src/feddrm" / name).is_dir()] == []


@pytest.mark.slow
def test_a_guided_query_is_drawn_from_a_run(tmp_path: Path) -> None:
    out = tmp_path / "guided.svg"
    told = run_benchmark("guided_query", "--rounds", 10, "--out", out)
    said = texts(out)
    shares = [int(text.removesuffix(" %")) for text in said if re.fullmatch(r"\d+ %", text)]
    assert len(shares) == 8
    assert sum(shares) == pytest.approx(100, abs=4)  # each is rounded
    asked = said[said.index("right") - 2].removesuffix(" says")
    assert f"{asked} answers {said[said.index('right') - 1]}" in told
    assert said[said.index("wrong") - 1] != said[said.index("right") - 1]
    committed = texts(ROOT / "docs/guided.svg")
    assert len(committed) == len(said)
