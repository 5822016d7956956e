"""Tests of what the page says about one run. The page's own tests read it as HTML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from feddrm.io.page_files import TERMS
from feddrm.report.page_parts.run_sections import flat, run_view
from feddrm.report.run_table import report_table


def test_nested_settings_become_dotted_names() -> None:
    settings = {"lr": 0.1234567, "data": {"name": "digits", "seed": None}, "sites": [{"name": "a", "n": 2}], "on": True}
    assert flat(settings) == [
        ("lr", "0.123457"),
        ("data.name", "digits"),
        ("data.seed", "null"),
        ("sites", "name a, n 2"),
        ("on", "true"),
    ]


def test_a_tile_explains_its_measure(make_run: Callable[..., Path]) -> None:
    folder = make_run("first", finished=False)
    for name in ("evaluation.json", "data.json", "data.safetensors"):
        (folder / name).unlink()
    view = run_view(report_table([folder]).groups[0], "r1")
    assert view.badge == "unfinished: round 30 of 60"
    tiles = {tile.title: tile for tile in view.tiles}
    assert list(tiles) == ["Average accuracy", "System accuracy", "Client accuracy", "Global model", "Oracle"]
    assert tiles["Oracle"].meaning == TERMS["oracle accuracy"]
    assert tiles["System accuracy"].note == "last round · head, density"
    assert [section.heading for section in view.sections] == ["Training", "Settings"]
