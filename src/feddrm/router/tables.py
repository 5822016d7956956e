"""Training features as the solver wants them, and choices by what is held out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.errors import SettingError
from feddrm.router.choose import FINER, Chosen, Holdout, choose_ridge, split
from feddrm.router.features import Recipe
from feddrm.router.fit import Fit, Problem, Sample, Scaler, Whitening, logits_at, moments_of, pooled, scaler_of, solve

COARSE_ROUNDS = 8  # enough to tell recipes and orders of magnitude apart

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RouterSettings:
    """How to fit. ``features`` None tries the candidates on held-out data; ``crops`` random crops per sample."""

    features: str | None = None
    holdout: Holdout | None = None
    crops: int = 1
    rounds: int = 60
    tolerance: float = 1e-6
    heads: bool = True
    joint: bool | None = None
    seed: int = 0

    def check(self) -> None:
        if self.crops < 1 or self.rounds < 1:
            raise SettingError(f"crops={self.crops}, rounds={self.rounds}: give at least 1")
        if self.holdout is not None:
            self.holdout.check()
        if self.features is not None:
            Recipe.parse(self.features)


@dataclass(frozen=True, eq=False)
class Table:
    """One recipe's standardised features of every client's training samples, with what the solver needs."""

    recipe: Recipe
    scaler: Scaler
    x: list[Tensor]
    whitening: Whitening

    @property
    def width(self) -> int:
        return self.x[0].shape[1]


def input_scale(federation: Federation) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the network's input is scaled by; the first client's, where clients scale each in its own way."""
    view = federation.clients[0].view
    return view.mean, view.std


def table_of(recipe: Recipe, found: Sequence[Mapping[str, Tensor]]) -> Table:
    """Standardise one recipe's features, and diagonalise their second moments."""
    plain = [torch.cat([rows[f.name] for f in recipe.features], dim=1) for rows in found]
    scaler = scaler_of(plain)
    x = [scaler(rows) for rows in plain]
    return Table(recipe, scaler, x, moments_of([Sample(rows, torch.empty(0)) for rows in x]))


def choose_recipe(
    recipes: Sequence[Recipe],
    found: Sequence[Mapping[str, Tensor]],
    targets: Sequence[Tensor],
    parts: Sequence[Tensor],
    holdout: Holdout,
    problem: Callable[[int], Callable[[float], Problem]],
    say: Progress,
) -> tuple[Table, Chosen, dict[str, Any]]:
    """The recipe with the least held-out loss on at most two parts, then its strength more finely on all."""
    few = Holdout(holdout.parts, min(2, holdout.used))
    best: tuple[Table, float] | None = None
    least, tried = float("inf"), {}
    for recipe in recipes:
        say(recipe.name)
        table = table_of(recipe, found)
        folds = pooled_folds(table, targets, parts, few)
        chosen = choose_ridge(problem(table.width), folds, table.whitening, rounds=COARSE_ROUNDS)
        tried[recipe.name] = told_of(chosen, table)
        if chosen.loss < least:
            best, least = (table, chosen.ridge), chosen.loss
    assert best is not None
    table, ridge = best
    finer = [factor * ridge for factor in FINER]
    folds = pooled_folds(table, targets, parts, holdout)
    return table, choose_ridge(problem(table.width), folds, table.whitening, ridges=finer), tried


def folds_of(
    table: Table, targets: Sequence[Tensor], parts: Sequence[Tensor], holdout: Holdout
) -> list[tuple[list[Sample], list[Sample]]]:
    """Per fold what is fitted on and what is held out, every client apart."""
    samples = [Sample(x, y) for x, y in zip(table.x, targets, strict=True)]
    return [split(samples, parts, fold) for fold in range(holdout.used)]


def pooled_folds(
    table: Table, targets: Sequence[Tensor], parts: Sequence[Tensor], holdout: Holdout
) -> list[tuple[list[Sample], list[Sample]]]:
    """The same with all local clients as one."""
    return [([pooled(a)], [pooled(b)]) for a, b in folds_of(table, targets, parts, holdout)]


def held_out(table: Table, parts: Sequence[Tensor], holdout: Holdout, points: Sequence[Tensor]) -> list[Tensor]:
    """Every client's held-out logits, each by the fit that did not see the sample; NaN where none was held out."""
    found = []
    for x, part in zip(table.x, parts, strict=True):
        logits = torch.full((len(x), len(points[0])), torch.nan, dtype=torch.float64, device=x.device)
        for fold in range(holdout.used):
            inside = (part == fold).to(x.device)
            logits[inside] = logits_at(x[inside], points[fold])
        found.append(logits)
    return found


def fit_all(
    problem: Problem, table: Table, targets: Sequence[Tensor], settings: RouterSettings, folds: Sequence[Tensor]
) -> Fit:
    """On all training data, from the average of the folds on."""
    start = torch.stack(list(folds)).mean(0) if len(folds) > 1 else None
    samples = [pooled([Sample(x, y) for x, y in zip(table.x, targets, strict=True)])]
    return solve(problem, samples, table.whitening, start=start, rounds=settings.rounds, tolerance=settings.tolerance)


def told_of(chosen: Chosen, table: Table) -> dict[str, Any]:
    """A choice in plain values, for the manifest."""
    return {
        "features": table.width,
        "ridge": chosen.ridge,
        "held_out_loss": chosen.loss,
        "held_out_accuracy": chosen.accuracy,
        "path": [list(step) for step in chosen.path],
    }
