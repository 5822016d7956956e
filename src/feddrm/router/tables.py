"""Training features as the solver wants them, and choices by what is held out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.errors import SettingError
from feddrm.router.choose import FINER, RIDGES, Chosen, Holdout, choose_ridge, split
from feddrm.router.features import Recipe
from feddrm.router.fit import Fit, Problem, Sample, Scaler, Whitening, logits_at, moments_of, pooled, scaler_of, solve

COARSE_ROUNDS = 8  # enough to tell recipes and orders of magnitude apart
GPU_CROPS = 8
AROUND = (30.0, 10.0, 3.0, 1.0, 0.3)  # times the strongest of the features' own strengths

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RouterSettings:
    """How to fit. ``features`` None tries the candidates on held-out data.

    ``crops`` random crops are made of every training sample, where the data has any: queries are
    cropped too, and fits on several are less taken by the accidents of one. None: eight on a GPU,
    one on a CPU, where the trunk's passes would take most of the time.
    """

    features: str | None = None
    holdout: Holdout | None = None
    crops: int | None = None
    rounds: int = 60
    tolerance: float = 1e-6
    heads: bool = True
    joint: bool | None = None
    seed: int = 0

    def check(self) -> None:
        if (self.crops is not None and self.crops < 1) or self.rounds < 1:
            raise SettingError(f"crops={self.crops}, rounds={self.rounds}: give at least 1")
        if self.holdout is not None:
            self.holdout.check()
        if self.features is not None:
            Recipe.parse(self.features)

    def crops_for(self, federation: Federation) -> int:
        """How many crops are made of every training sample."""
        if federation.crop is None:
            return 1
        on_gpu = federation.clients[0].train.x.is_cuda
        return self.crops if self.crops is not None else GPU_CROPS if on_gpu else 1


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


def table_of(recipe: Recipe, found: Sequence[Mapping[str, Tensor]], alone: Mapping[str, float] | None = None) -> Table:
    """Standardise one recipe's features, and diagonalise their second moments.

    ``alone`` are the strengths that suit each feature alone. A few hundred colour statistics want
    a thousandth of the ridge of two thousand channel means, and one strength for all would silence
    or overfit one of them; so each is scaled to want the same.
    """
    plain = [torch.cat([rows[f.name] for f in recipe.features], dim=1) for rows in found]
    scaler = scaler_of(plain)
    if alone is not None:
        most = max(alone[f.name] for f in recipe.features)
        shrink = [
            torch.full((found[0][f.name].shape[1],), (alone[f.name] / most) ** 0.5).to(scaler.scale)
            for f in recipe.features
        ]
        scaler = Scaler(scaler.mean, scaler.scale * torch.cat(shrink))
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
    """The recipe with the least held-out loss on at most two parts, then its strength more finely on all.

    Every feature is tried alone first: the strength that suits it best is its weight among others.
    """
    few = Holdout(holdout.parts, min(2, holdout.used))
    tried: dict[str, Any] = {}
    least, best = float("inf"), None
    alone: dict[str, float] = {}
    singles = [Recipe((feature,)) for feature in dict.fromkeys(f for r in recipes for f in r.features)]
    for recipe in [*singles, *(r for r in recipes if len(r.features) > 1)]:
        say(recipe.name)
        several = len(recipe.features) > 1
        table = table_of(recipe, found, alone if several else None)
        ridges = [max(alone[f.name] for f in recipe.features) * around for around in AROUND] if several else RIDGES
        folds = pooled_folds(table, targets, parts, few)
        chosen = choose_ridge(problem(table.width), folds, table.whitening, ridges=ridges, rounds=COARSE_ROUNDS)
        tried[recipe.name] = told_of(chosen, table)
        if not several:
            alone[recipe.name] = chosen.ridge
        if recipe in recipes and chosen.loss < least:
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
