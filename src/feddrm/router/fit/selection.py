"""Choosing features and ridge strengths by their loss on held-out samples.

The samples are held out from the fits of the router and the heads, not from the training of the trunk. A trunk that
has seen them makes them look easier than new queries. Ridge strengths chosen on them are, if anything, too small.
Test data is never used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feddrm.router.features.base import Recipe
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import Cohort, FitRequest, Job, Target
from feddrm.router.fit.ridge_path import Chosen, RidgePath
from feddrm.router.settings import MANY, PART_BYTES, Holdout, RouterSettings
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.hessian import MOST_PARAMETERS, Hessian, SampledHessian
from feddrm.router.solver.lbfgs import FitState, Metric, Minimisation, advance, first_state, minimise
from feddrm.router.solver.problem import Problem, add

RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
FINER = (3.0, 1.0, 0.3)  # times the best of these
AROUND = (30.0, 10.0, 3.0, 1.0, 0.3)  # times the strongest of the features' own strengths
PATH_TOLERANCE = 1e-5  # of fits that only compare
COARSE_ROUNDS, FINE_ROUNDS = 8, 12  # enough to tell recipes and orders of magnitude apart; and near strengths
# Where every round is a message: of fits that compare, and of those that are kept, which use all their rounds.
FEW_ROUNDS, KEPT_ROUNDS, KEPT_TOLERANCE = 4, 5, 1e-14
LENGTHS = (1.0, 0.5, 0.25, 0.1)  # of a step, tried in one message
LARGE = 2**22  # probabilities of all samples and outputs
LOOKED_AT = 16  # one sample in so many, for the second derivatives of large fits
PRODUCTS = 7  # matrices of those samples and all outputs that a step holds at most
FEW_FOLDS = 2  # held out in turn at most, to compare recipes

Progress = Callable[[str], None]


def solve_requests(
    cohort: Cohort,
    requests: Mapping[str, FitRequest],
    rounds: int | None,
    tolerance: float,
    part_bytes: int | None = None,
) -> dict[str, FitState]:
    """Fit all requests side by side on a cohort."""
    fits = {
        key: Minimisation(
            request.problem, metric_of(request, rounds is None, part_bytes), _first_state(cohort, request)
        )
        for key, request in requests.items()
    }

    def gradients(trials: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, ClientSums]]:
        return cohort.gradients({key: requests[key] for key in trials}, trials)

    return minimise(fits, gradients, rounds=rounds, tolerance=tolerance, noise=cohort.noise)


def metric_of(
    request: FitRequest, to_optimum: bool, part_bytes: int | None = None
) -> Metric | Callable[[Tensor], SampledHessian]:
    """What is known of a request's second derivatives. Large fits that go to their optimum look at some samples."""
    whitening, rows = request.design.whitening, request.design.rows
    outputs, samples = request.problem.outputs, sum(map(len, rows))
    large = request.target == "client" and outputs > MANY and samples * outputs >= LARGE
    if whitening is None or whitening.vectors is None or not (to_optimum and large):
        return whitening
    some = torch.cat([x[::LOOKED_AT] for x in rows])
    most = (part_bytes or PART_BYTES[some.device.type]) // (PRODUCTS * some.element_size() * outputs)
    some = some[:: math.ceil(len(some) / max(1, most))]
    turned = some @ whitening.vectors.to(some)
    return lambda point: SampledHessian.at(point, turned, whitening)


def solve_in_few(
    cohort: Cohort, requests: Mapping[str, FitRequest], rounds: int, tolerance: float
) -> tuple[dict[str, FitState], dict[str, ClientSums]]:
    """Fit all requests where every round is a message; second, the scores of the fitted points on held-out samples.

    The clients' answers at zero follow from their moments, so the first round takes no message. Every message tries
    several lengths of a step, and brings the scores. A request on all samples also brings second derivatives, and all
    fits use the latest ones.
    """
    states: dict[str, FitState] = {}
    scores: dict[str, ClientSums] = {}
    for key, request in requests.items():
        states[key] = _first_state(cohort, request)
        if request.start is None:
            answers, scores[key] = cohort.at_zero(request)
            whitening = request.design.whitening
            states[key] = advance(request.problem, states[key], answers, whitening, 0.0, cohort.noise)
    hessian: Hessian | None = None
    for _ in range(rounds):
        tried = {key: _lengths(key, state) for key, state in states.items() if not bool(state.done)}
        if not tried:
            break
        points = {name: point for lengths in tried.values() for name, point in lengths.items()}
        asked = {name: requests[key] for key, lengths in tried.items() for name in lengths}
        curved = {next(iter(tried[key])) for key in tried if has_hessian(requests[key])}
        gradients, held = cohort.evaluate(asked, points, curved)
        for name in curved:
            hessian = Hessian.of(add(list(gradients[name].values())), asked[name].problem)
        for key, lengths in tried.items():
            problem, design = requests[key].problem, requests[key].design
            losses = {name: _objective(problem, points[name], gradients[name]) for name in lengths}
            best = min(losses, key=losses.__getitem__)
            before = replace(states[key], trial=points[best])
            metric = hessian or design.whitening
            states[key] = advance(problem, before, gradients[best], metric, tolerance, cohort.noise)
            if states[key].iterate is points[best] and best in held:
                scores[key] = held[best]
    return states, scores


def has_hessian(request: FitRequest) -> bool:
    """Whether a request brings second derivatives: it is on all samples, and a message can hold them."""
    return request.fold is None and request.problem.outputs * (request.problem.features + 1) <= MOST_PARAMETERS


def _lengths(key: str, state: FitState) -> dict[str, Tensor]:
    """The points of a message for one fit, by name."""
    step = state.trial - state.iterate
    lengths = LENGTHS if bool(step.any()) else LENGTHS[:1]
    return {f"{key}@{i}": state.iterate + length * step for i, length in enumerate(lengths)}


def _objective(problem: Problem, point: Tensor, answers: Mapping[int, ClientSums]) -> float:
    return float(
        sum(a["loss"] for a in answers.values()) / sum(a["count"] for a in answers.values()) + problem.penalty(point)[0]
    )


def _first_state(cohort: Cohort, request: FitRequest) -> FitState:
    return first_state(request.problem, cohort.members, like=cohort.like, start=request.start)


@dataclass(frozen=True, eq=False)
class Softmax:
    """What a series of fits tells apart on a cohort: the target, and the problem for a width and a ridge."""

    cohort: Cohort
    target: Target
    problem: Callable[[int, float], Problem]
    settings: RouterSettings

    def choose(
        self, jobs: Iterable[Job], folds: int, rounds: int, near: Chosen | None = None
    ) -> Iterator[tuple[DesignMatrix, Chosen]]:
        """Of every job its design matrix and the ridge with the least held-out loss.

        ``near`` are earlier fits on the design matrix of a single job.
        """
        few = self.settings.few_messages
        rounds = min(FEW_ROUNDS if few else rounds, self.settings.path_rounds or rounds)
        for batch in self.cohort.batches(jobs):
            paths = [(design, RidgePath(ridges, folds)) for design, ridges in batch]
            # In few messages all strengths are tried side by side, otherwise one after another.
            while requests := {
                f"{i}.{step}.{fold}": FitRequest(
                    design, self.target, self.problem(design.width, ridge), fold, path.starts[fold]
                )
                for i, (design, path) in enumerate(paths)
                for step, ridge in enumerate(path.left if few else path.left[:1])
                for fold in range(folds)
            }:
                points, scores = self._try(requests, rounds, near)
                for i, (_, path) in enumerate(paths):
                    for step in range(len(path.left if few else path.left[:1])):
                        keys = [f"{i}.{step}.{fold}" for fold in range(folds)]
                        if path.left:
                            path.take([points[key] for key in keys], [scores[key] for key in keys])
            yield from ((design, path.chosen) for design, path in paths)

    def _try(
        self, requests: dict[str, FitRequest], rounds: int, near: Chosen | None
    ) -> tuple[dict[str, Tensor], Mapping[str, ClientSums]]:
        """Fits that only compare, and their scores on held-out samples."""
        if self.settings.few_messages:
            if near is not None:  # for its second derivatives
                requests["all"] = self._on_all(next(iter(requests.values())).design, near.ridge, near.folds)
            states, scores = solve_in_few(self.cohort, requests, rounds, PATH_TOLERANCE)
            return {key: state.iterate for key, state in states.items()}, scores
        states = solve_requests(self.cohort, requests, rounds, PATH_TOLERANCE)
        points = {key: state.iterate for key, state in states.items()}
        return points, self.cohort.scores(requests, points)

    def choose_one(
        self, design: DesignMatrix, ridges: Sequence[float], folds: int, rounds: int, near: Chosen | None = None
    ) -> Chosen:
        """The best ridge on one design matrix."""
        return next(iter(self.choose([(design, ridges)], folds, rounds, near)))[1]

    def finish(self, design: DesignMatrix, chosen: Chosen) -> tuple[list[Tensor], FitState]:
        """The fits that are kept: those of all folds, and the one on all training samples."""
        if not self.settings.few_messages:
            folds = self.finish_folds(design, chosen)
            return folds, self.fit_all(design, chosen.ridge, folds)
        requests = {**self._on_folds(design, chosen), "all": self._on_all(design, chosen.ridge, chosen.folds)}
        states, _ = solve_in_few(self.cohort, requests, self.settings.rounds or KEPT_ROUNDS, KEPT_TOLERANCE)
        whole = states.pop("all")
        done = whole.promised <= self.settings.tolerance
        return [state.iterate for state in states.values()], replace(whole, done=done)

    def scored(self, design: DesignMatrix, chosen: Chosen, folds: Sequence[Tensor]) -> Chosen:
        """With the held-out loss and accuracy of fits that were chosen elsewhere."""
        requests = self._on_folds(design, chosen)
        total = add(self.cohort.scores(requests, dict(zip(requests, folds, strict=True))).values())
        return replace(
            chosen, loss=float(total["loss"] / total["count"]), accuracy=float(total["correct"] / total["count"])
        )

    def finish_folds(self, design: DesignMatrix, chosen: Chosen) -> list[Tensor]:
        """The fits of all folds with the chosen ridge, taken as far as the fit that is kept.

        The fits along a path stop early. That is enough to compare strengths, but such a fit is less sure of its
        answers than a finished one, so calibration needs finished ones.
        """
        requests = self._on_folds(design, chosen)
        states = solve_requests(
            self.cohort, requests, self.settings.rounds, self.settings.tolerance, self.settings.part_bytes
        )
        return [state.iterate for state in states.values()]

    def _on_folds(self, design: DesignMatrix, chosen: Chosen) -> dict[str, FitRequest]:
        problem = self.problem(design.width, chosen.ridge)
        starts = enumerate(chosen.folds)
        return {str(fold): FitRequest(design, self.target, problem, fold, start) for fold, start in starts}

    def _on_all(self, design: DesignMatrix, ridge: float, folds: Sequence[Tensor]) -> FitRequest:
        start = torch.stack(list(folds)).mean(0)
        return FitRequest(design, self.target, self.problem(design.width, ridge), None, start)

    def fit_all(self, design: DesignMatrix, ridge: float, folds: Sequence[Tensor]) -> FitState:
        """The fit on all training samples, from the average of the folds on."""
        request, settings = self._on_all(design, ridge, folds), self.settings
        states = solve_requests(self.cohort, {"all": request}, settings.rounds, settings.tolerance, settings.part_bytes)
        return states["all"]


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
                best, least = (design, chosen), chosen.loss
    assert best is not None
    design, chosen = best
    ridges = [factor * chosen.ridge for factor in FINER]
    return design, softmax.choose_one(design, ridges, holdout.used, FINE_ROUNDS, chosen), trials
