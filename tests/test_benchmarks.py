"""Tests that every benchmark runs. Of the figures, only those that the documentation promises are checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import python_script

ROOT = Path(__file__).parent.parent


def figures_of(words: str, key: str, folder: Path) -> dict[str, Any]:
    name, *options = words.split()
    target = folder / "figures.json"
    script = f"import runpy; runpy.run_module('benchmarks.{name}', run_name='__main__', alter_sys=True)"
    python_script(script, *options, "--json", target, cwd=ROOT).check_returncode()
    figures = json.loads(target.read_text())
    assert {key, "hardware", "versions", "date"} <= set(figures)
    return dict(figures)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("closed_form --features 40 --scale 0.02 --repeat 1", "fit"),
        ("closed_form --digits 1", "digits"),
        ("data_pipeline --random", "batch_of_128"),
        ("deploy_privacy --rounds 1 --seeds 1", "rows"),
        ("digits_gap --rounds 1", "gap_points"),
        ("digits_router --rounds 1 --seeds 1", "over_global_points"),
        ("router --features 40 --scale 0.02", "fit"),
        ("vote_starts --data digits --model mlp --rounds 2 --starts 2 --out TMP", "vote"),
    ],
)
def test_short_benchmarks_run_and_write_their_figures(words: str, key: str, tmp_path: Path) -> None:
    figures_of(words.replace("TMP", str(tmp_path / "runs")), key, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cpu_round", "recipe_settings", "router_rounds", "stacked_clients", "threads", "tuned"]
)
def test_long_benchmarks_can_be_imported(name: str) -> None:
    python_script(f"import benchmarks.{name}", cwd=ROOT).check_returncode()


def test_committed_figures_name_hardware_versions_and_date() -> None:
    paths = list((ROOT / "results" / "bench").glob("*.json"))
    assert paths
    for path in paths:
        assert {"hardware", "versions", "date"} <= set(json.loads(path.read_text())), path.name


@pytest.mark.slow
def test_competence_beats_origin_by_five_points_where_origin_is_not_competence(tmp_path: Path) -> None:
    mean = figures_of("competence --heart 0", "noisy_labels", tmp_path)["noisy_labels"]["mean"]
    assert mean["over_origin_points"] >= 5
    assert mean["client"] > 0.65, "the router does find the client: it is the client that answers badly"
