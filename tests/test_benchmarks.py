"""Tests that every benchmark runs. Of the figures, only those that the documentation promises are checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("closed_form --features 40 --scale 0.02 --repeat 1", "fit"),
        ("closed_form --digits 1", "digits"),
        ("competence --seeds 1 --rounds 2 --heart 0", "noisy_labels"),
        ("data_pipeline --random", "batch_of_128"),
        ("deploy_privacy --rounds 1 --seeds 1", "rows"),
        ("digits_gap --rounds 1", "gap_points"),
        ("drm_simulations coverage --repetitions 2 --workers 1", "coverage"),
        ("drm_simulations power --repetitions 2 --workers 1", "power"),
        ("drm_simulations size --repetitions 2 --workers 1", "size"),
        ("digits_router --rounds 1 --seeds 1", "over_global_points"),
        ("router --features 40 --scale 0.02", "fit"),
        ("vote_starts --data digits --model mlp --rounds 2 --starts 2 --out TMP", "vote"),
    ],
)
def test_short_benchmarks_run_and_write_their_figures(words: str, key: str, tmp_path: Path) -> None:
    name, *options = words.replace("TMP", str(tmp_path / "runs")).split()
    target = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options, "--json", str(target)],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    figures = json.loads(target.read_text())
    assert {key, "hardware", "versions", "date"} <= set(figures)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cpu_round", "recipe_settings", "router_rounds", "stacked_clients", "threads", "tuned"]
)
def test_long_benchmarks_can_be_imported(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import benchmarks.{name}"], cwd=ROOT, check=True)


def test_committed_figures_name_hardware_versions_and_date() -> None:
    paths = list((ROOT / "results" / "bench").glob("*.json"))
    assert paths
    for path in paths:
        assert {"hardware", "versions", "date"} <= set(json.loads(path.read_text())), path.name


@pytest.mark.slow
def test_competence_beats_origin_by_five_points_where_origin_is_not_competence(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.competence", "--heart", "0", "--json", str(target)],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    mean = json.loads(target.read_text())["noisy_labels"]["mean"]
    assert mean["over_origin_points"] >= 5
    assert mean["client"] > 0.65, "the router does find the client: it is the client that answers badly"
