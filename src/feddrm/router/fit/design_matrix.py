"""Training features as the solver wants them, and choices by what is held out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.errors import SettingError
from feddrm.router.features.base import Recipe
from feddrm.router.fit.selection import FINER, RIDGES, Chosen, Holdout, choose_ridge, split
from feddrm.router.solver.solve import (
    Fit,
    Problem,
    Sample,
    Scaler,
    Whitening,
    logits_at,
    moments_of,
    pooled,
    scaler_of,
    solve,
)

COARSE_ROUNDS, FINE_ROUNDS = 8, 12  # enough to tell recipes and orders of magnitude apart; and near ones
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
    """One recipe's standardised features of every client's training samples, with what the solver needs.

    ``x`` has those of the clients that are here: none at a server over a network.
    """

    recipe: Recipe
    scaler: Scaler
    x: list[Tensor]
    whitening: Whitening

    @property
    def width(self) -> int:
        return len(self.scaler.mean)


Job = tuple[Table, Sequence[float]]  # ridge strengths to be tried on it
# A recipe's table; the strengths that suit its features alone, where it has several.
MakeTable = Callable[[Recipe, Mapping[str, float] | None], Table]
# Of every job its table and the strength with the least held-out loss, after so many rounds of fitting.
Choose = Callable[[Iterable[Job], Holdout, int], Iterable[tuple[Table, Chosen]]]


def input_scale(federation: Federation) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the network's input is scaled by; the first client's, where clients scale each in its own way."""
    view = federation.clients[0].view
    return view.mean, view.std


def own_scales(federation: Federation) -> bool:
    """Whether clients scale raw samples each in its own way, so that a query's scale says whose it is."""
    return len({(client.view.mean, client.view.std) for client in federation.clients}) > 1


def table_of(recipe: Recipe, found: Sequence[Mapping[str, Tensor]], alone: Mapping[str, float] | None = None) -> Table:
    """Standardise one recipe's features, and diagonalise their second moments.

    ``alone`` are the strengths that suit each feature alone. A few hundred colour statistics want
    a thousandth of the ridge of two thousand channel means, and one strength for all would silence
    or overfit one of them; so each is scaled to want the same.
    """
    plain = [torch.cat([rows[f.name] for f in recipe.features], dim=1) for rows in found]
    scaler = scaler_of(plain)
    if alone is not None:
        stretch = stretch_of(recipe, {f.name: found[0][f.name].shape[1] for f in recipe.features}, alone)
        scaler = Scaler(scaler.mean, scaler.scale * stretch.to(scaler.scale))
    x = [scaler(rows) for rows in plain]
    return Table(recipe, scaler, x, moments_of([Sample(rows, torch.empty(0)) for rows in x]))


def stretch_of(recipe: Recipe, widths: Mapping[str, int], alone: Mapping[str, float]) -> Tensor:
    """By how much every column's scale changes for all features of a recipe to want the same strength."""
    most = max(alone[f.name] for f in recipe.features)
    parts = [torch.full((widths[f.name],), (alone[f.name] / most) ** 0.5) for f in recipe.features]
    return torch.cat(parts)


def choose_recipe(
    recipes: Sequence[Recipe], make: MakeTable, choose: Choose, holdout: Holdout, say: Progress
) -> tuple[Table, Chosen, dict[str, Any]]:
    """The recipe with the least held-out loss on at most two parts, then its strength more finely on all.

    Every feature is tried alone first: the strength that suits it best is its weight among others.
    """
    few = Holdout(holdout.parts, min(2, holdout.used))
    tried: dict[str, Any] = {}
    least, best = float("inf"), None
    alone: dict[str, float] = {}

    def singly() -> Iterator[Job]:
        for feature in dict.fromkeys(f for r in recipes for f in r.features):
            say(feature.name)
            yield make(Recipe((feature,)), None), RIDGES

    def jointly() -> Iterator[Job]:
        for recipe in recipes:
            if len(recipe.features) > 1:
                say(recipe.name)
                most = max(alone[f.name] for f in recipe.features)
                yield make(recipe, alone), [most * around for around in AROUND]

    for jobs in (singly(), jointly()):
        for table, chosen in choose(jobs, few, COARSE_ROUNDS):
            tried[table.recipe.name] = told_of(chosen, table)
            if len(table.recipe.features) == 1:
                alone[table.recipe.name] = chosen.ridge
            if table.recipe in recipes and chosen.loss < least:
                best, least = (table, chosen.ridge), chosen.loss
    assert best is not None
    table, ridge = best
    return (*next(iter(choose([(table, [factor * ridge for factor in FINER])], holdout, FINE_ROUNDS))), tried)


def local_tables(found: Sequence[Mapping[str, Tensor]]) -> MakeTable:
    """How tables are made of the features of local clients."""
    return lambda recipe, alone: table_of(recipe, found, alone)


def local_choice(
    targets: Sequence[Tensor], parts: Sequence[Tensor], problem: Callable[[int], Callable[[float], Problem]]
) -> Choose:
    """How strengths are chosen where the clients are local: one table after another, along a path."""

    def choose(jobs: Iterable[Job], holdout: Holdout, rounds: int) -> Iterator[tuple[Table, Chosen]]:
        for table, ridges in jobs:
            folds = pooled_folds(table, targets, parts, holdout)
            yield table, choose_ridge(problem(table.width), folds, table.whitening, ridges=ridges, rounds=rounds)

    return choose


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


def finish_folds(
    problem: Problem,
    folds: Sequence[tuple[Sequence[Sample], Sequence[Sample]]],
    table: Table,
    settings: RouterSettings,
    starts: Sequence[Tensor],
) -> list[Tensor]:
    """The fits of the chosen strength taken as far as the one that is kept: only then do they err as it does.

    Fits along a path stop early, which is enough to compare strengths, but how sure they are says
    little about how sure the finished one is.
    """
    return [
        solve(
            problem, outside, table.whitening, start=start, rounds=settings.rounds, tolerance=settings.tolerance
        ).point
        for (outside, _), start in zip(folds, starts, strict=True)
    ]


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
