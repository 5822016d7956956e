"""Recipes: what they fill in, what comes before them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import feddrm
from feddrm.engine import Plan
from feddrm.engine.recipes import DEFAULT, RECIPES, fill_in
from feddrm.runs import resolve
from feddrm.runs.run_router import saved_config
from methods.every_method import ROWS
from refusal import refused

TINY: dict[str, Any] = {"data_settings": {"clients": 2, "seed": 0}, "rounds": 2, "local_steps": 1}


def test_the_recipe_paper_is_the_paper_s_plan() -> None:
    assert fill_in({}, small=False, recipe="paper") == Plan()
    small = fill_in({}, small=True, recipe="paper")
    assert small == Plan(rounds=40, batch_size=32, lr=0.05)


def test_every_recipe_is_possible_whatever_the_rounds() -> None:
    for recipe in RECIPES:
        for small in (True, False):
            for rounds in (1, 5, 9, 10, 40, 800):
                fill_in({"rounds": rounds}, small, recipe).check()


def test_given_settings_come_before_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, "tuned", {"photographs": {"lr": 0.1, "clip": 5.0, "momentum": 0.5}})
    plan = fill_in({"lr": 0.7, "clip": 0.0}, small=False, recipe="tuned")
    assert (plan.lr, plan.clip, plan.momentum) == (0.7, 0.0, 0.5)


def test_a_whole_plan_without_clip_and_warm_up_has_none() -> None:
    """A run's config.yaml leaves them out where they are off; no recipe may bring them in."""
    assert fill_in(Plan(lr=0.2).as_dict(), small=False) == Plan(lr=0.2)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"recipe": "papr"}, ["unknown recipe 'papr'", "did you mean 'paper'?"]),
        ({"recipe": 3}, ["unknown recipe 3 ", "known: paper, tuned"]),
        ({"recipe": "paper", **Plan().as_dict()}, ["recipe=paper", "every training setting is given already"]),
    ],
)
def test_recipes_that_cannot_be_are_refused_before_data_are_read(
    settings: dict[str, Any], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddrm.data.datasets.digits.Digits.load", None)
    with refused(*parts):
        feddrm.train("digits", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_the_settings_of_the_recipe_are_in_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPES, DEFAULT, {"small samples": {"lr": 0.25, "clip": 2.0}})
    run = feddrm.train("digits", out=tmp_path / "run", **TINY)
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (written["lr"], written["clip"]) == (0.25, 2.0)
    assert run.config["lr"] == 0.25
    feddrm.train("digits", out=tmp_path / "paper", recipe="paper", **TINY)
    written = yaml.safe_load((tmp_path / "paper" / "config.yaml").read_text())
    assert written["lr"] == 0.05
    assert "clip" not in written


def test_a_run_of_the_recipe_paper_is_resumed_and_routed_with_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router's fit reads the run's settings again; the default recipe adds nothing to them."""
    federation = feddrm.load("digits", clients=2, seed=0)
    saved = resolve(federation, recipe="paper").as_dict()
    monkeypatch.setitem(RECIPES, DEFAULT, {"small samples": {"lr": 0.25, "clip": 2.0}})
    assert saved_config(saved, federation, None).as_dict() == saved


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_no_method_collapses_with_the_default_recipe(name: str, tmp_path: Path) -> None:
    method = ROWS[name].method
    run = feddrm.train("digits", method, out=tmp_path / "run", data_settings={"clients": 3, "seed": 0}, rounds=16)
    assert run.summary is not None
    assert run.summary.get("collapsed") is None
    assert run.summary["average_accuracy"]["mean"] > 0.5
