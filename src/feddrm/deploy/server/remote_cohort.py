"""The router's own solver in letters, over whoever can be asked: each step is one letter to every site.

Fits that do not depend on each other (those of other features and other folds) share their letters, so that
choosing among them costs no more round trips than the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.deploy.wire.messages import Message
from feddrm.errors import FeddrmError
from feddrm.methods import Tensors
from feddrm.router import Holdout, Recipe
from feddrm.router.fit.design_matrix import Choose, Job, Table, stretch_of
from feddrm.router.fit.selection import PATH_TOLERANCE, Chosen, RidgePath
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.lbfgs import FitState, advance, first_state
from feddrm.router.solver.problem import Problem, Scaler, Whitening, add

# A question to every site; the answers by client number, of whoever answered in time.
Ask = Callable[[Mapping[str, Any], Mapping[str, Tensor]], dict[int, Message]]
NOISE = 1e-6  # relative error of losses on float32 features


class SiteMissingError(FeddrmError):
    """A site without which a step has no meaning did not answer: the fit begins again when it is back."""


@dataclass(frozen=True, eq=False)
class Fit:
    """One of the fits that share letters: of what, on which features, without which fold, from where.

    ``target`` is what is told apart: the client, the class, or the pair of both.
    """

    table: Table
    target: str
    problem: Problem
    fold: int | None
    start: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Measured:
    """What the sites' sums say of all features: their scale, and their second moments once scaled."""

    scalers: Mapping[str, Scaler]
    moments: ClientSums

    def table(self, recipe: Recipe, alone: Mapping[str, float] | None = None) -> Table:
        """One recipe's: the second moments of some columns are a part of those of all."""
        widths = {name: len(scaler.mean) for name, scaler in self.scalers.items()}
        ends = dict(zip(widths, torch.tensor(list(widths.values())).cumsum(0).tolist(), strict=True))
        columns = torch.cat([torch.arange(ends[f.name] - widths[f.name], ends[f.name]) for f in recipe.features])
        mean, scale = (
            torch.cat([getattr(self.scalers[f.name], part) for f in recipe.features]) for part in ("mean", "scale")
        )
        stretch = torch.ones_like(scale) if alone is None else stretch_of(recipe, widths, alone).to(scale)
        some = self.moments["moments"][columns][:, columns] / torch.outer(stretch, stretch)
        whitening = Whitening.of({"count": self.moments["count"], "moments": some})
        return Table(recipe, Scaler(mean, scale * stretch), [], whitening)


class Solver:
    """Asks, and goes on with the router's server half; ``path_rounds`` bounds the fits that only choose."""

    def __init__(self, ask: Ask, names: Sequence[str], path_rounds: int) -> None:
        self.ask, self.names, self.path_rounds = ask, tuple(names), path_rounds

    def measure(self, recipe: Recipe, leaves: Tensors, told: Mapping[str, Any]) -> Measured:
        """Two letters: sums of all features, then their second moments."""
        sums = self.total({"step": "features", "recipe": recipe.as_list(), **told}, leaves)
        scalers = {f.name: Scaler.of(of_key(sums, f.name)) for f in recipe.features}
        mean, scale = (torch.cat([getattr(s, part) for s in scalers.values()]) for part in ("mean", "scale"))
        tensors = {f"table/{recipe.name}/mean": mean, f"table/{recipe.name}/scale": scale}
        return Measured(scalers, self.total({"step": "moments", "table": recipe.name}, tensors))

    def everybody(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[ClientSums]:
        """All sites' answers, in the order of their numbers: for a step that means nothing without one of them."""
        answers = self.ask(header, tensors)
        missing = [name for i, name in enumerate(self.names) if i not in answers]
        if missing:
            raise SiteMissingError(
                f"the router's fit needs {', '.join(missing)}, which did not answer: it begins again"
            )
        return [answers[i].tensors for i in range(len(self.names))]

    def total(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ClientSums:
        """Their sum."""
        return add(self.everybody(header, tensors))

    def solve(self, fits: Mapping[str, Fit], rounds: int, tolerance: float) -> dict[str, Tensor]:
        """The points of several fits side by side: until all are done, or for ``rounds``; sites may miss some."""
        return {key: state.at for key, state in self.states(fits, rounds, tolerance).items()}

    def states(self, fits: Mapping[str, Fit], rounds: int, tolerance: float) -> dict[str, FitState]:
        """The same with how they got there."""
        states = {key: first_state(f.problem, len(self.names), start=f.start) for key, f in fits.items()}
        for _ in range(rounds):
            open_ = {key: fits[key] for key, state in states.items() if not bool(state.done)}
            if not open_:
                break
            header, tensors = _letter("gradient", open_, {key: states[key].point for key in open_})
            answers = self.ask(header, tensors)
            for key, fit in open_.items():
                messages = {number: of_key(letter.tensors, key) for number, letter in answers.items()}
                states[key] = advance(fit.problem, states[key], messages, fit.table.whitening, tolerance, NOISE)
        return states

    def choice(self, target: str, problem: Callable[[int], Callable[[float], Problem]]) -> Choose:
        """How strengths are chosen where sites are asked: tables and folds share the letters of every strength.

        Each table's path is that of :func:`choose_ridge`: from strong to weak, each strength
        starting where the one before ended, until one is worse.
        """

        def choose(given: Iterable[Job], holdout: Holdout, rounds: int) -> list[tuple[Table, Chosen]]:
            jobs = [(table, RidgePath(ridges, holdout.used)) for table, ridges in given]
            while fits := {
                f"{j}.{fold}": Fit(table, target, problem(table.width)(path.ridge), fold, path.starts[fold])
                for j, (table, path) in enumerate(jobs)
                for fold in range(holdout.used)
                if path.ridge is not None
            }:
                points = self.solve(fits, min(rounds, self.path_rounds), PATH_TOLERANCE)
                scores = self.total(*_letter("scores", fits, points))
                for j, (_, path) in enumerate(jobs):
                    keys = [f"{j}.{fold}" for fold in range(holdout.used)]
                    if keys[0] in fits:
                        path.take([points[key] for key in keys], [of_key(scores, key) for key in keys])
            return [(table, path.chosen) for table, path in jobs]

        return choose

    def finish_folds(
        self, table: Table, target: str, problem: Problem, folds: Sequence[Tensor], rounds: int, tolerance: float
    ) -> list[Tensor]:
        """As :func:`feddrm.router.fit.design_matrix.finish_folds`, all folds in the same letters."""
        fits = {str(fold): Fit(table, target, problem, fold, start) for fold, start in enumerate(folds)}
        return list(self.solve(fits, rounds, tolerance).values())

    def fit_all(
        self, table: Table, target: str, problem: Problem, folds: Sequence[Tensor], rounds: int, tolerance: float
    ) -> FitState:
        """On all training data, from the average of the folds on."""
        start = torch.stack(list(folds)).mean(0) if len(folds) > 1 else None
        return self.states({"all": Fit(table, target, problem, None, start)}, rounds, tolerance)["all"]


def table_tensors(table: Table) -> Tensors:
    """A table as sites need it to standardise their features."""
    name = table.recipe.name
    return {f"table/{name}/mean": table.scaler.mean, f"table/{name}/scale": table.scaler.scale}


def _letter(step: str, fits: Mapping[str, Fit], points: Mapping[str, Tensor]) -> tuple[dict[str, Any], Tensors]:
    told = {key: [fit.table.recipe.name, fit.target, fit.fold] for key, fit in fits.items()}
    tensors = {f"point/{key}": points[key] for key in fits}
    for fit in fits.values():
        tensors |= table_tensors(fit.table)
    return {"step": step, "fits": told}, tensors


def of_key(tensors: Mapping[str, Tensor], key: str) -> Tensors:
    """What an answer says of one of its fits."""
    return {name.removeprefix(f"{key}/"): value for name, value in tensors.items() if name.startswith(f"{key}/")}
