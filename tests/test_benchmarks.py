"""Tests that every benchmark runs. Of the figures, only those that the documentation promises are checked."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import feddrm
from commands import python_script

pytestmark = pytest.mark.documented

ROOT = Path(__file__).parent.parent


def run_benchmark(name: str, *options: object) -> str:
    script = f"import runpy; runpy.run_module('benchmarks.{name}', run_name='__main__', alter_sys=True)"
    done = python_script(script, *options, cwd=ROOT)
    done.check_returncode()
    return done.stdout


def figures_of(words: str, key: str, folder: Path) -> dict[str, Any]:
    name, *options = words.split()
    target = folder / "figures.json"
    run_benchmark(name, *options, "--json", target)
    figures = json.loads(target.read_text())
    assert {key, "hardware", "versions", "date"} <= set(figures)
    return dict(figures)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("closed_form --features 40 --scale 0.02 --repeat 1", "fit"),
        ("closed_form --digits 1", "digits"),
        ("communication --rounds 2", "methods"),
        ("cost_curves --quick --figure TMP.png", "curves"),
        ("data_pipeline --random", "batch_of_128"),
        ("deploy_privacy --rounds 1 --seeds 1", "rows"),
        ("secure_aggregation --repeats 1", "nets"),
        ("digits_gap --rounds 1", "gap_points"),
        ("divided_subjects --seeds 1", "divided by patients"),
        ("drift --streams 2 --queries 400 --rounds 2", "auto"),
        ("drm_analysis --scale 0.05 --repeat 1", "cpu_seconds"),
        ("drm_simulations bootstrap --repetitions 2 --workers 1", "bootstrap"),
        ("drm_simulations coverage --repetitions 2 --workers 1", "coverage"),
        ("drm_simulations power --repetitions 2 --workers 1", "power"),
        ("drm_simulations size --repetitions 2 --workers 1", "size"),
        ("digits_router --rounds 1 --seeds 1", "over_global_points"),
        ("label_sets --digits 1 --heart 0 --rounds 1", "digits"),
        ("light_start --repeats 1 --only methods", "commands"),
        ("many_clients --clients 30 --samples 20 --parts fit decision gateway", "gateway"),
        ("router --features 40 --scale 0.02", "fit"),
        ("thousand_clients --clients 3 4 --data rows --rounds 3", "curves"),
        ("vote_starts --data digits --model mlp --rounds 2 --starts 2 --out TMP", "vote"),
    ],
)
def test_short_benchmarks_run_and_write_their_figures(words: str, key: str, tmp_path: Path) -> None:
    figures_of(words.replace("TMP", str(tmp_path / "runs")), key, tmp_path)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("real_data")
def test_closed_form_methods_are_compared_with_trained_ones(tmp_path: Path) -> None:
    figures_of("closed_form_methods --seeds 1 --data heart", "tables", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "cpu_round",
        "deploy_router",
        "engine_profile",
        "idle_sites",
        "recipe_settings",
        "router_rounds",
        "stacked_clients",
        "threads",
        "tuned",
    ],
)
def test_long_benchmarks_print_their_help(name: str) -> None:
    assert run_benchmark(name, "--help").startswith(f"usage: {name}.py")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("real_data")
def test_closed_form_and_exact_fit_are_compared_on_a_trained_run_and_shown(tmp_path: Path) -> None:
    run, target, docs = tmp_path / "run", tmp_path / "figures.json", tmp_path / "docs"
    feddrm.train("heart", rounds=1, out=run)
    run_benchmark("closed_form_cell", run, "--polish", 0, 1, "--rounds", 2, "--json", target)
    figures = json.loads(target.read_text())
    assert {"hardware", "versions", "date", "command"} <= set(figures)
    rows = {(row["fit"], row.get("polish", row.get("bound"))): row for row in figures["rows"]}
    assert list(rows) == [("fed3r, ridge router", 0), *product(("fed3r", "fedlda"), (0, 1)), ("exact", 2)]
    for method in ("fed3r", "fedlda"):
        closed, polished = rows[method, 0], rows[method, 1]
        assert (closed["messages"], closed["rounds"], polished["rounds"]) == (1, 0, 2), "one round of either head"
        assert polished["mib"] > closed["mib"]
    assert rows["exact", 2]["messages"] > 20
    docs.mkdir()
    page = docs / "router_measured.md"
    page.write_text("before\n<!-- closed_form_cell -->\nold\n<!-- end of closed_form_cell -->\nafter\n")
    run_benchmark("closed_form_cell", "--page", target, "--docs", docs)
    shown = page.read_text()
    assert shown.startswith("before\n")
    assert shown.endswith("\nafter\n")
    assert "old" not in shown
    assert shown.count("\n| ") == 1 + len(rows), "a row of the table for every fit"
    assert (docs / "closed_form.png").stat().st_size > 1000


def test_committed_figures_name_hardware_versions_and_date() -> None:
    paths = list((ROOT / "results" / "bench").glob("*.json"))
    assert paths
    for path in paths:
        assert {"hardware", "versions", "date"} <= set(json.loads(path.read_text())), path.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["closed_form_methods", "communication"])
def test_the_tables_of_methods_show_the_committed_figures(name: str, tmp_path: Path) -> None:
    page = tmp_path / "methods.md"
    page.write_text((ROOT / "docs" / "methods.md").read_text())
    figures = ROOT / "results" / "bench" / f"{name}.json"
    run_benchmark(name, "--page", figures, "--docs", tmp_path)
    assert page.read_text() == (ROOT / "docs" / "methods.md").read_text()


@pytest.mark.slow
def test_competence_beats_origin_by_five_points_where_origin_is_not_competence(tmp_path: Path) -> None:
    mean = figures_of("competence --heart 0", "noisy_labels", tmp_path)["noisy_labels"]["mean"]
    assert mean["over_origin_points"] >= 5
    assert mean["client"] > 0.65, "the router does find the client: it is the client that answers badly"
