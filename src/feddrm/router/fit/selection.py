"""Choosing features and ridge strengths by their loss on held-out samples.

The samples are held out from the fits of the router and the heads, not from the training of the trunk. A trunk that
has seen them makes them look easier than new queries. Ridge strengths chosen on them are, if anything, too small.
Test data is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.router.features.base import Recipe
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import Cohort, FitRequest, Job, Target
from feddrm.router.fit.ridge_path import Chosen, RidgePath
from feddrm.router.settings import Holdout, RouterSettings
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.lbfgs import FitState, Task, first_state, minimise
from feddrm.router.solver.problem import Problem

RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
FINER = (3.0, 1.0, 0.3)  # times the best of these
AROUND = (30.0, 10.0, 3.0, 1.0, 0.3)  # times the strongest of the features' own strengths
PATH_TOLERANCE = 1e-5  # of fits that only compare
COARSE_ROUNDS, FINE_ROUNDS = 8, 12  # enough to tell recipes and orders of magnitude apart; and near strengths
FEW_FOLDS = 2  # held out in turn at most, to compare recipes

Progress = Callable[[str], None]


def solve_requests(
    cohort: Cohort, requests: Mapping[str, FitRequest], rounds: int | None, tolerance: float
) -> dict[str, FitState]:
    """Fit all requests side by side on a cohort."""
    tasks = {
        key: Task(
            request.problem,
            request.design.whitening,
            first_state(request.problem, cohort.members, like=cohort.like, start=request.start),
        )
        for key, request in requests.items()
    }

    def gradients(trials: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, ClientSums]]:
        return cohort.gradients({key: requests[key] for key in trials}, trials)

    return minimise(tasks, gradients, rounds=rounds, tolerance=tolerance, noise=cohort.noise)


@dataclass(frozen=True, eq=False)
class Softmax:
    """What a series of fits tells apart on a cohort: the target, and the problem for a width and a ridge."""

    cohort: Cohort
    target: Target
    problem: Callable[[int, float], Problem]
    settings: RouterSettings

    def choose(self, jobs: Iterable[Job], folds: int, rounds: int) -> Iterator[tuple[DesignMatrix, Chosen]]:
        """Of every job its design matrix and the ridge with the least held-out loss."""
        rounds = min(rounds, self.settings.path_rounds or rounds)
        for batch in self.cohort.batches(jobs):
            paths = [(design, RidgePath(ridges, folds)) for design, ridges in batch]
            while requests := {
                f"{i}.{fold}": FitRequest(
                    design, self.target, self.problem(design.width, path.ridge), fold, path.starts[fold]
                )
                for i, (design, path) in enumerate(paths)
                if path.ridge is not None
                for fold in range(folds)
            }:
                states = solve_requests(self.cohort, requests, rounds, PATH_TOLERANCE)
                points = {key: state.iterate for key, state in states.items()}
                scores = self.cohort.scores(requests, points)
                for i, (_, path) in enumerate(paths):
                    if path.ridge is not None:
                        keys = [f"{i}.{fold}" for fold in range(folds)]
                        path.take([points[key] for key in keys], [scores[key] for key in keys])
            yield from ((design, path.chosen) for design, path in paths)

    def choose_one(self, design: DesignMatrix, ridges: Sequence[float], folds: int, rounds: int) -> Chosen:
        """The best ridge on one design matrix."""
        return next(iter(self.choose([(design, ridges)], folds, rounds)))[1]

    def finish_folds(self, design: DesignMatrix, chosen: Chosen) -> list[Tensor]:
        """The fits of all folds with the chosen ridge, taken as far as the fit that is kept.

        The fits along a path stop early. That is enough to compare strengths, but such a fit is less sure of its
        answers than a finished one, so calibration needs finished ones.
        """
        problem = self.problem(design.width, chosen.ridge)
        requests = {
            str(fold): FitRequest(design, self.target, problem, fold, start) for fold, start in enumerate(chosen.folds)
        }
        states = solve_requests(self.cohort, requests, self.settings.rounds, self.settings.tolerance)
        return [state.iterate for state in states.values()]

    def fit_all(self, design: DesignMatrix, ridge: float, folds: Sequence[Tensor]) -> FitState:
        """The fit on all training samples, from the average of the folds on."""
        start = torch.stack(list(folds)).mean(0)
        request = FitRequest(design, self.target, self.problem(design.width, ridge), None, start)
        return solve_requests(self.cohort, {"all": request}, self.settings.rounds, self.settings.tolerance)["all"]


def choose_recipe(
    softmax: Softmax, recipes: Sequence[Recipe], holdout: Holdout, on_step: Progress = lambda _: None
) -> tuple[DesignMatrix, Chosen, dict[str, Any]]:
    """The recipe with the least held-out loss on few folds, then its ridge more finely on all folds.

    Every feature is tried alone first: the ridge that suits it alone sets its scale among the others.
    Third, all trials in plain values.
    """
    few = holdout.at_most(FEW_FOLDS)
    cohort = softmax.cohort
    trials: dict[str, Any] = {}
    least, best = float("inf"), None
    alone: dict[str, float] = {}

    def single_features() -> Iterator[Job]:
        for feature in dict.fromkeys(f for r in recipes for f in r.features):
            on_step(feature.name)
            yield cohort.design(Recipe((feature,))), RIDGES

    def several_features() -> Iterator[Job]:
        for recipe in recipes:
            if len(recipe.features) > 1:
                on_step(recipe.name)
                most = max(alone[f.name] for f in recipe.features)
                yield cohort.design(recipe, alone), [most * factor for factor in AROUND]

    for jobs in (single_features(), several_features()):
        for design, chosen in softmax.choose(jobs, few.used, COARSE_ROUNDS):
            trials[design.recipe.name] = chosen.as_dict(design.width)
            if len(design.recipe.features) == 1:
                alone[design.recipe.name] = chosen.ridge
            if design.recipe in recipes and chosen.loss < least:
                best, least = (design, chosen.ridge), chosen.loss
    assert best is not None
    design, ridge = best
    return design, softmax.choose_one(design, [f * ridge for f in FINER], holdout.used, FINE_ROUNDS), trials
