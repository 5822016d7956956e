"""The server's half of the exact router fit, over whoever can be asked: the router's own solver in letters.

Every step is one letter to each site. Fits that do not depend on each other (ridge strengths, folds)
share their letters, so that choosing a strength costs no more round trips than one fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddrm.deploy.brief import Brief
from feddrm.deploy.fitting import BINS
from feddrm.deploy.letters import Letter
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Tensors
from feddrm.models import Net
from feddrm.router import Calibration, Holdout, Recipe, Router, save_router
from feddrm.router.choose import FINER, RIDGES
from feddrm.router.features import possible_features
from feddrm.router.policy import RULES, conformal_threshold
from feddrm.router.server import FitState, Problem, Scaler, Whitening, add, advance, first_state

# A question to every site; the answers by client number, of whoever answered in time.
Ask = Callable[[Mapping[str, Any], Mapping[str, Tensor]], dict[int, Letter]]
MISSES = (0.01, 0.05, 0.1, 0.2)
NOISE = 1e-6  # relative error of losses on float32 features


@dataclass(frozen=True)
class RoutingSettings:
    """How to fit; ``features`` None takes all that samples and shared leaves give."""

    features: str | None = None
    ridges: tuple[float, ...] = RIDGES
    finer: tuple[float, ...] = FINER
    rounds: int = 60
    path_rounds: int = 6
    tolerance: float = 1e-6
    seed: int = 0

    def check(self) -> None:
        if self.rounds < 1 or self.path_rounds < 1 or not self.ridges:
            raise SettingError("the router's fit needs rounds, path_rounds and ridges: give at least one of each")


@dataclass(frozen=True, eq=False)
class _Fit:
    """One of the fits that share letters: which problem, without which fold, from where."""

    problem: Problem
    fold: int | None
    start: Tensor | None = None


def fit_over(ask: Ask, brief: Brief, shared: Tensors, settings: RoutingSettings, folder: Path) -> dict[str, Any]:
    """Fit the router and write ``router/``; every site must be there at the beginning, and some of them later."""
    settings.check()
    net = brief.make_net().requires_grad_(False)
    usable = net if any(leaf.startswith("trunk.") for leaf in shared) else None
    recipe = _recipe(brief, settings, usable, shared)
    holdout = Holdout.suggested(sum(brief.sizes))
    leaves = {leaf: value for leaf, value in shared.items() if recipe.wants(leaf)}
    told = {
        "recipe": recipe.as_list(),
        "parts": holdout.parts,
        "used": holdout.used,
        "seed": settings.seed,
        "sizes": list(brief.sizes),
    }
    sums = _all(ask({"step": "features", **told}, leaves), brief)
    scaler = Scaler.of(add(sums))
    moments = _all(ask({"step": "moments"}, {"mean": scaler.mean, "scale": scaler.scale}), brief)
    whitening, width = Whitening.of(add(moments)), len(scaler.mean)

    def problem(ridge: float) -> Problem:
        return Problem(len(brief.names), width, ridge)

    ridge, folds, path = _choose(ask, brief, problem, whitening, holdout, settings.ridges, settings)
    if settings.finer:
        ridge, folds, more = _choose(
            ask, brief, problem, whitening, holdout, [ridge * f for f in settings.finer], settings
        )
        path += more
    start = torch.stack(list(folds)).mean(0) if len(folds) > 1 else None
    last = _together(
        ask, brief, {"0": _Fit(problem(ridge), None, start)}, whitening, settings.rounds, settings.tolerance
    )
    state = last["0"]
    log_prior = torch.tensor(brief.sizes, dtype=torch.float64).div(sum(brief.sizes)).log()
    calibration = _calibrate(ask, folds, log_prior)
    router = Router(
        names=brief.names,
        recipe=recipe,
        scaler=Scaler(scaler.mean.float(), scaler.scale.float()),
        weight=state.at[:, :-1].float(),
        bias=state.at[:, -1].float(),
        log_prior=log_prior.float(),
        calibration=calibration,
        net=usable if recipe.needs else None,
        leaves=leaves,
        shape=brief.shape,
        input_mean=brief.scale[0],
        input_std=brief.scale[1],
    )
    chosen = {
        "recipe": recipe.name,
        "ridge": ridge,
        "features": width,
        "rounds": int(state.rounds),
        "converged": bool(state.done),
        "path": path,
    }
    notes = {"columns": None if brief.columns is None else list(brief.columns), "chosen": {"router": chosen}}
    save_router(folder, router, model=dict(brief.model), classes=len(brief.classes), notes=notes)
    return chosen


def _recipe(brief: Brief, settings: RoutingSettings, net: Net | None, shared: Tensors) -> Recipe:
    possible = possible_features(brief.shape, net, shared)
    known = [name for name in ("raw", "multiscale", "colour") if name in possible]
    if settings.features is None and not known:
        raise FeddrmError("no feature can be computed from what is shared: give a method with a shared trunk")
    recipe = Recipe.parse(settings.features or "+".join(known), *brief.scale)
    recipe.check(brief.shape, net)
    return recipe


def _all(answers: Mapping[int, Letter], brief: Brief) -> list[Tensors]:
    missing = [name for i, name in enumerate(brief.names) if i not in answers]
    if missing:
        raise FeddrmError(f"the router needs every site once, {', '.join(missing)} did not answer: it is tried again")
    return [answers[i].tensors for i in range(len(brief.names))]


def _choose(
    ask: Ask,
    brief: Brief,
    problem: Callable[[float], Problem],
    whitening: Whitening,
    holdout: Holdout,
    ridges: Sequence[float],
    settings: RoutingSettings,
) -> tuple[float, tuple[Tensor, ...], list[list[float]]]:
    """The strength with the least held-out loss, its fits of every fold, and what was tried."""
    fits = {f"{i}.{fold}": _Fit(problem(ridge), fold) for i, ridge in enumerate(ridges) for fold in range(holdout.used)}
    states = _together(ask, brief, fits, whitening, settings.path_rounds, 1e-5)
    points = {key: state.at for key, state in states.items()}
    answers = ask({"step": "scores", "folds": {key: fit.fold for key, fit in fits.items()}}, points)
    path: list[list[float]] = []
    for i, ridge in enumerate(ridges):
        total = add([_of(a.tensors, f"{i}.{f}") for a in answers.values() for f in range(holdout.used)])
        path.append([ridge, float(total["loss"] / total["count"]), float(total["correct"] / total["count"])])
    best = min(range(len(ridges)), key=lambda i: path[i][1])
    return ridges[best], tuple(points[f"{best}.{fold}"] for fold in range(holdout.used)), path


def _together(
    ask: Ask, brief: Brief, fits: Mapping[str, _Fit], whitening: Whitening, rounds: int, tolerance: float
) -> dict[str, FitState]:
    """Several fits side by side, one letter a round: until all are done, or for ``rounds``."""
    clients = len(brief.names)
    states = {key: first_state(fit.problem, clients, start=fit.start) for key, fit in fits.items()}
    for _ in range(rounds):
        open_ = {key: state for key, state in states.items() if not bool(state.done)}
        if not open_:
            break
        folds = {key: fits[key].fold for key in open_}
        answers = ask({"step": "gradient", "folds": folds}, {key: state.point for key, state in open_.items()})
        for key, state in open_.items():
            messages = {number: _of(letter.tensors, key) for number, letter in answers.items()}
            states[key] = advance(fits[key].problem, state, messages, whitening, tolerance, NOISE)
    return states


def _of(tensors: Tensors, key: str) -> Tensors:
    return {name.removeprefix(f"{key}/"): value for name, value in tensors.items() if name.startswith(f"{key}/")}


def _calibrate(ask: Ask, folds: Sequence[Tensor], log_prior: Tensor) -> Calibration:
    """Temperature by Newton on sums; percentiles and thresholds from counts in a thousand bins of weight."""
    points = {str(fold): point for fold, point in enumerate(folds)}
    scale = 1.0
    for _ in range(20):
        total = add([a.tensors for a in ask({"step": "slope", "scale": scale}, points).values()])
        slope = float((total["mean"] - total["own"]) / total["count"])
        bend = float(total["bend"] / total["count"])
        if bend <= 0 or abs(slope) < 1e-6:
            break
        scale = min(max(scale - slope / bend, scale / 2), scale * 2)
    scale = min(max(scale, 1e-2), 1e2)
    answers = ask({"step": "spread", "scale": scale}, {**points, "log_prior": log_prior})
    strange = max(float(a.tensors["strange"]) for a in answers.values())
    counts = add([{k: v for k, v in a.tensors.items() if k != "strange"} for a in answers.values()])
    confidence, conformal = {}, {}
    grid = np.linspace(0, 1, 101)
    for rule in RULES:
        # The lower edge of a bin: thresholds that promise coverage may only err towards larger sets.
        top, own = (np.repeat(np.arange(BINS) / BINS, counts[f"{rule}/{kind}"].numpy()) for kind in ("top", "own"))
        confidence[rule] = tuple(float(v) for v in np.quantile(top, grid))
        weights = torch.from_numpy(np.maximum(own, math.ulp(0.0))).log()[:, None]
        for miss in MISSES:
            conformal[f"{rule}_{miss}"] = conformal_threshold(
                weights, torch.zeros(len(weights), dtype=torch.int64), miss
            )
    return Calibration(1 / scale, confidence, conformal, 1.5 * strange)
