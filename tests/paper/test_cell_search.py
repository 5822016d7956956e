"""A grid with a search: real searches on the digits, records, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from feddrm.paper.cell_records import read_records
from feddrm.paper.cell_search import read_searches, with_choices
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.runner import Runner
from feddrm.runs import Run
from feddrm.search.halving import plan_halving
from refusal import refused

PAIR = "digits-dir0.3_feddrm-lam0.9"
CONTENT = {
    "name": "rates",
    "seed": 2025,
    "train": {"rounds": 32, "local_steps": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0005},
    "evaluation": {"window": 2, "every": 4, "test_crop": True, "ties": "cuda"},
    "search": {"axes": {"lr": [0.0001, 0.3]}, "goal": "average", "cost": 0.5, "held_out": 0.2},
    "methods": {"feddrm-lam0.9": {"label": "FedDRM", "use": {"name": "feddrm", "lam": 0.9}}},
    "settings": {
        "digits-dir0.3": {
            "label": "digits Dir-0.3",
            "model": {"name": "mlp", "hidden": [16], "branch": 8},
            "data": {"name": "digits", "clients": 3, "partition": "dirichlet", "alpha": 0.3, "shift": "high"},
        }
    },
    "order": [{"name": "all", "settings": ["digits-dir0.3"], "methods": ["feddrm-lam0.9"], "seeds": [2025, 2026]}],
    "tables": {"main": []},
    "claims": [],
    "unreported": [],
}


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    (tmp_path / "rates.yaml").write_text(yaml.safe_dump(CONTENT))
    return Grid.read(tmp_path / "rates.yaml")


def opened(grid: Grid, folder: Path, **options: Any) -> Runner:
    return Runner(grid, folder / "results", folder / "work", "cpu", router=False, **options)


def events(made: Runner, cells: tuple[Cell, ...]) -> list[tuple[str, str]]:
    return [(outcome.event, outcome.why) for outcome in made.go(list(cells))]


def test_all_seeds_train_with_the_rate_that_the_grids_own_seed_found(grid: Grid, tmp_path: Path) -> None:
    first = [("searched", "lr=0.3"), ("finished", ""), ("finished", "")]
    other_seed_first = tuple(reversed(grid.cells))
    assert events(opened(grid, tmp_path), other_seed_first) == first
    search = read_searches(grid, tmp_path / "results")[PAIR]
    assert (search["seed"], search["chosen"]) == (2025, {"lr": 0.3})
    trials = sorted((tmp_path / "work" / "search" / PAIR / "trials").rglob("seconds.json"))
    assert len(trials) == 2
    assert search["seconds"] == round(sum(sum(json.loads(path.read_text()).values()) for path in trials), 1) > 0
    rounds = max(int(name) for trial in search["trials"].values() for name in trial["scores"])
    assert rounds == plan_halving(2, 16, 32).rounds
    chosen = with_choices(grid, tmp_path / "results")
    for cell in chosen.cells:
        assert cell.plan.lr == 0.3
        assert Run.open(tmp_path / "work" / cell.id).config["lr"] == 0.3
    assert set(read_records(chosen, tmp_path / "results")) == set(grid.by_id)
    assert events(opened(grid, tmp_path), grid.cells) == []
    with refused("departs from the protocol in 'lr'"):
        read_records(grid, tmp_path / "results")  # without the choices, the grid's own rate is expected


def test_a_search_that_runs_out_of_time_goes_on_in_the_next_call(grid: Grid, tmp_path: Path) -> None:
    made = opened(grid, tmp_path, deadline=1000.0, clock=lambda: 1000.0 - 10.0 - 1e-3)
    [(event, why)] = events(made, grid.cells[:1])
    assert (event, why[:8]) == ("failed", "search: ")  # not even one comparison
    assert not (tmp_path / "results" / "search").exists()
    assert events(opened(grid, tmp_path), grid.cells[:1]) == [("searched", "lr=0.3"), ("finished", "")]


def test_a_cell_without_its_search_is_estimated_with_it(grid: Grid, tmp_path: Path) -> None:
    runner = opened(grid, tmp_path)
    events(runner, grid.cells[:1])
    with_search = opened(replace(grid, chosen={}), tmp_path)
    known = with_search.standing(grid.cells[1]).seconds
    with_search.grid = grid
    assert with_search.standing(grid.cells[1]).seconds == pytest.approx(1.5 * known)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"format": "other"}, ["is broken (no search of the form feddrm-paper-search-1)", "search again"]),
        ({"search": {"axes": {"lr": [9]}}}, ["searched otherwise than the grid 'rates' says", "search again"]),
    ],
)
def test_a_search_of_another_form_is_refused(
    grid: Grid, tmp_path: Path, change: dict[str, Any], parts: list[str]
) -> None:
    path = tmp_path / "results" / "search" / f"{PAIR}.json"
    path.parent.mkdir(parents=True)
    content = {"format": "feddrm-paper-search-1", "search": CONTENT["search"], "chosen": {"lr": 1.0}, "trials": {}}
    path.write_text(json.dumps(content))
    assert with_choices(grid, tmp_path / "results").chosen == {PAIR: {"lr": 1.0}}
    path.write_text(json.dumps(content | change))
    with refused(*parts):
        with_choices(grid, tmp_path / "results")


def test_a_search_of_another_grid_is_refused(grid: Grid, tmp_path: Path) -> None:
    path = tmp_path / "results" / "search" / "elsewhere_ditto.json"
    path.parent.mkdir(parents=True)
    content = {"format": "feddrm-paper-search-1", "search": CONTENT["search"], "chosen": {"lr": 1.0}, "trials": {}}
    path.write_text(json.dumps(content))
    with refused("is no search of the grid 'rates'"):
        read_searches(grid, tmp_path / "results")


def test_a_grid_without_a_search_stays_as_it_is(smoke: Grid, tmp_path: Path) -> None:
    assert with_choices(smoke, tmp_path) is smoke


def test_the_tuned_grid_has_the_papers_protocol_but_for_rate_and_clip(paper: Grid) -> None:
    tuned = Grid.read("tuned")
    assert tuned.content["train"] == {**paper.content["train"], "clip": 1.0}
    assert tuned.content["evaluation"] == paper.content["evaluation"]
    assert len(tuned.cells) == 40
    for name, setting in tuned.content["settings"].items():
        assert setting == paper.content["settings"][name]
    for cell in tuned.cells:
        protocol = next(
            c.protocol()
            for c in paper.cells
            if (c.setting, c.learner.name, c.plan.rounds) == (cell.setting, cell.learner.name, 800)
            and c.learner.tuning_rounds(800) == cell.learner.tuning_rounds(800)
        )
        own = cell.protocol()
        assert {k for k in own if own[k] != protocol.get(k)} <= {"seed", "data", "method", "clip"}
