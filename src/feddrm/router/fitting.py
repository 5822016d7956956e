"""From a trained federation to a router: features, held-out choices, the exact fits, in one call.

What is fitted on what: ridge strengths, features, temperature, thresholds and stacking scalars come
from samples held out of the fits (:mod:`feddrm.router.choose`); the fits that are kept use all
training data with the strengths so chosen. Test data is only ever seen by ``evaluate_router``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation, generator_for
from feddrm.errors import FeddrmError, SettingError
from feddrm.models import Net
from feddrm.router.choose import FINER, Chosen, Holdout, choose_ridge, split
from feddrm.router.features import Leaves, Recipe, extract, possible_features
from feddrm.router.fit import Fit, Problem, Sample, Scaler, Whitening, logits_at, moments_of, pooled, scaler_of, solve
from feddrm.router.heads import (
    STRENGTHS,
    choose_private,
    fit_private,
    joint_classes,
    joint_label,
    joint_problem,
    probe_problem,
)
from feddrm.router.policy import RULES, by_rule, conformal_threshold, consult, fit_temperature
from feddrm.router.router import Calibration, Router
from feddrm.router.stack import Stack, fit_stack

ROUTER = int.from_bytes(b"rout", "big")
MISSES = (0.01, 0.05, 0.1, 0.2)
JOINT_WORK = {"cpu": 3e10, "cuda": 3e13}  # multiplications per round beyond which the joint model is left out

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
class LinearHeads:
    """The server's exact class heads: points [outputs, d + 1] on their own standardised features."""

    recipe: Recipe
    scaler: Scaler
    probe: Tensor
    joint: Tensor | None
    stacks: Mapping[str, Stack]

    def tensors(self) -> dict[str, Tensor]:
        found = {"mean": self.scaler.mean, "scale": self.scaler.scale, "probe": self.probe}
        return found if self.joint is None else {**found, "joint": self.joint}


@dataclass(frozen=True, eq=False)
class FittedRouter:
    """The server's router and heads; every client's private correction apart from them; how it was chosen."""

    router: Router
    heads: LinearHeads | None
    private: Mapping[str, Tensor]
    chosen: Mapping[str, Any]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Table:
    """One recipe's standardised features of every client's training samples, with what the solver needs."""

    recipe: Recipe
    scaler: Scaler
    x: list[Tensor]
    whitening: Whitening

    @property
    def width(self) -> int:
        return self.x[0].shape[1]


def candidates(possible: Sequence[str]) -> list[str]:
    """Recipes worth trying. The client branch is not among them: it was trained on the held-out samples' clients.

    Its layers have seen, for every training sample, the very answer that is asked here, so that it
    looks better on held-out training samples than it is.
    """
    known = [name for name in ("raw", "multiscale", "colour") if name in possible]
    if not known:
        raise FeddrmError("no feature can be computed from what is shared: give a method with a shared trunk")
    tried = [*known, "+".join(known)]
    if len(known) == 3:
        tried += ["multiscale+colour", "raw+multiscale"]
    return list(dict.fromkeys(tried))


def fit_router(
    net: Net | None,
    shared: Leaves,
    federation: Federation,
    settings: RouterSettings | None = None,
    *,
    on_step: Progress | None = None,
) -> FittedRouter:
    """Fit the exact router and, where asked, the heads, on the federation's training data.

    ``shared`` are the leaves that the server holds; no private one is looked at.
    """
    settings = settings or RouterSettings()
    settings.check()
    say = on_step or (lambda _: None)
    clock = _Clock()
    shape = federation.shape
    usable = net if net is not None and any(leaf.startswith("trunk.") for leaf in shared) else None
    possible = possible_features(shape, usable, shared)
    names = [settings.features] if settings.features is not None else candidates(possible)
    mean, std = _input_scale(federation)
    recipes = [Recipe.parse(name, mean, std) for name in names]
    for recipe in recipes:
        recipe.check(shape, usable)
    extra = ["hidden"] if settings.heads and "hidden" in possible else []
    everything = Recipe.parse("+".join([*(f.name for r in recipes for f in r.features), *extra]), mean, std)
    say("features")
    found, labels = _training_features(everything, usable, shared, federation, settings)
    clock("features")
    holdout = settings.holdout or Holdout.suggested(int(federation.sizes.sum()))
    parts = holdout.draw(federation.sizes.tolist(), settings.seed, settings.crops)
    clients = [torch.full_like(y, i) for i, y in enumerate(labels)]

    def client_problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: Problem(len(federation), width, ridge)

    table, chosen, tried = _choose(recipes, found, clients, parts, holdout, client_problem, say)
    problem = Problem(len(federation), table.width, chosen.ridge)
    fit = _final(problem, table, clients, settings, chosen.folds)
    held = _held(table, parts, holdout, chosen.folds)
    router = _router(fit, table, federation, held, usable, shared)
    clock("router")
    told: dict[str, Any] = {
        "router": {
            "recipe": table.recipe.name,
            **_told(chosen, table),
            "rounds": fit.rounds,
            "converged": fit.converged,
        },
        "candidates": tried,
        "holdout": {"parts": holdout.parts, "used": holdout.used},
        "crops": settings.crops,
    }
    if not settings.heads:
        return FittedRouter(router, None, {}, told, clock.seconds)
    say("heads")
    heads, private, more = _fit_heads(table, found, labels, parts, holdout, federation, router, held, extra, settings)
    clock("heads")
    return FittedRouter(router, heads, private, {**told, **more}, clock.seconds)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def __call__(self, what: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[what], self.last = now - self.last, now


def _input_scale(federation: Federation) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the network's input is scaled by; the first client's, where clients scale each in its own way."""
    view = federation.clients[0].view
    return view.mean, view.std


def _training_features(
    recipe: Recipe, net: Net | None, shared: Leaves, federation: Federation, settings: RouterSettings
) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """Every client's features (on the client) and labels, ``crops`` times over where the data has random crops."""
    found, labels = [], []
    height, width = federation.shape[-2:] if federation.crop is not None else (0, 0)
    for number, client in enumerate(federation.clients):
        rows = []
        for copy in range(settings.crops):
            boxes = None
            if federation.crop is not None:
                generator = generator_for(settings.seed, ROUTER, number, copy)
                boxes = federation.crop.boxes(len(client.train), height, width, generator).to(client.train.x.device)
            rows.append(extract(recipe, net, shared, client.view(client.train.x, boxes)))
        found.append({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
        labels.append(client.train.y.repeat(settings.crops))
    return found, labels


def _table(recipe: Recipe, found: Sequence[Mapping[str, Tensor]]) -> _Table:
    plain = [torch.cat([rows[f.name] for f in recipe.features], dim=1) for rows in found]
    scaler = scaler_of(plain)
    x = [scaler(rows) for rows in plain]
    return _Table(recipe, scaler, x, moments_of([Sample(rows, torch.empty(0)) for rows in x]))


def _choose(
    recipes: Sequence[Recipe],
    found: Sequence[Mapping[str, Tensor]],
    targets: Sequence[Tensor],
    parts: Sequence[Tensor],
    holdout: Holdout,
    problem: Callable[[int], Callable[[float], Problem]],
    say: Progress,
) -> tuple[_Table, Chosen, dict[str, Any]]:
    """The recipe with the least held-out loss on at most two parts, then its strength more finely on all."""
    few = Holdout(holdout.parts, min(2, holdout.used))
    best: tuple[_Table, float] | None = None
    least, tried = float("inf"), {}
    for recipe in recipes:
        say(recipe.name)
        table = _table(recipe, found)
        chosen = choose_ridge(problem(table.width), _pooled_folds(table, targets, parts, few), table.whitening)
        tried[recipe.name] = _told(chosen, table)
        if chosen.loss < least:
            best, least = (table, chosen.ridge), chosen.loss
    assert best is not None
    table, ridge = best
    finer = [factor * ridge for factor in FINER]
    folds = _pooled_folds(table, targets, parts, holdout)
    return table, choose_ridge(problem(table.width), folds, table.whitening, ridges=finer), tried


def _folds(
    table: _Table, targets: Sequence[Tensor], parts: Sequence[Tensor], holdout: Holdout
) -> list[tuple[list[Sample], list[Sample]]]:
    """Per fold what is fitted on and what is held out, every client apart."""
    samples = [Sample(x, y) for x, y in zip(table.x, targets, strict=True)]
    return [split(samples, parts, fold) for fold in range(holdout.used)]


def _pooled_folds(
    table: _Table, targets: Sequence[Tensor], parts: Sequence[Tensor], holdout: Holdout
) -> list[tuple[list[Sample], list[Sample]]]:
    """The same with all local clients as one."""
    return [([pooled(a)], [pooled(b)]) for a, b in _folds(table, targets, parts, holdout)]


def _held(table: _Table, parts: Sequence[Tensor], holdout: Holdout, points: Sequence[Tensor]) -> list[Tensor]:
    """Every client's held-out logits, each by the fit that did not see the sample; NaN where none was held out."""
    found = []
    for x, part in zip(table.x, parts, strict=True):
        logits = torch.full((len(x), len(points[0])), torch.nan, dtype=torch.float64, device=x.device)
        for fold in range(holdout.used):
            inside = (part == fold).to(x.device)
            logits[inside] = logits_at(x[inside], points[fold])
        found.append(logits)
    return found


def _final(
    problem: Problem, table: _Table, targets: Sequence[Tensor], settings: RouterSettings, folds: Sequence[Tensor]
) -> Fit:
    """On all training data, from the average of the folds on."""
    start = torch.stack(list(folds)).mean(0) if len(folds) > 1 else None
    samples = [pooled([Sample(x, y) for x, y in zip(table.x, targets, strict=True)])]
    return solve(problem, samples, table.whitening, start=start, rounds=settings.rounds, tolerance=settings.tolerance)


def _told(chosen: Chosen, table: _Table) -> dict[str, Any]:
    return {
        "features": table.width,
        "ridge": chosen.ridge,
        "held_out_loss": chosen.loss,
        "held_out_accuracy": chosen.accuracy,
        "path": [list(step) for step in chosen.path],
    }


def _router(
    fit: Fit,
    table: _Table,
    federation: Federation,
    held: Sequence[Tensor],
    net: Net | None,
    shared: Leaves,
) -> Router:
    log_prior = federation.weights.log()
    seen = [~logits[:, 0].isnan() for logits in held]
    logits = torch.cat([rows[mask] for rows, mask in zip(held, seen, strict=True)])
    origin = torch.cat([torch.full((int(mask.sum()),), i, device=mask.device) for i, mask in enumerate(seen)])
    temperature = fit_temperature(logits, origin)
    calm = logits / temperature
    confidence: dict[str, tuple[float, ...]] = {}
    conformal: dict[str, float] = {}
    for rule in RULES:
        log_weights = by_rule(calm, log_prior, rule)
        top = log_weights.exp().amax(1).cpu()
        grid = torch.linspace(0, 1, 101, dtype=top.dtype)
        confidence[rule] = tuple(_quantiles(top, grid).tolist())
        conformal |= {f"{rule}_{miss}": conformal_threshold(log_weights, origin, miss) for miss in MISSES}
    strange = torch.cat([x[m].square().mean(1) for x, m in zip(table.x, seen, strict=True)])
    like = table.x[0]
    mean, std = _input_scale(federation)
    return Router(
        names=federation.names,
        recipe=table.recipe,
        scaler=Scaler(table.scaler.mean.to(like), table.scaler.scale.to(like)),
        weight=fit.point[:, :-1].to(like),
        bias=fit.point[:, -1].to(like),
        log_prior=log_prior.to(like),
        # Half as strange again as the strangest held-out sample: for what is no query of this federation at all.
        calibration=Calibration(temperature, confidence, conformal, 1.5 * float(strange.max())),
        net=net if table.recipe.needs else None,
        leaves={leaf: value for leaf, value in shared.items() if table.recipe.wants(leaf)},
        shape=federation.shape,
        input_mean=mean,
        input_std=std,
    )


def _quantiles(values: Tensor, grid: Tensor) -> Tensor:
    """As torch.quantile, which refuses more than 16 million values."""
    ordered = values.sort().values
    place = grid * (len(ordered) - 1)
    low = place.long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _fit_heads(
    base: _Table,
    found: Sequence[Mapping[str, Tensor]],
    labels: Sequence[Tensor],
    parts: Sequence[Tensor],
    holdout: Holdout,
    federation: Federation,
    router: Router,
    held_clients: Sequence[Tensor],
    extra: Sequence[str],
    settings: RouterSettings,
) -> tuple[LinearHeads, dict[str, Tensor], dict[str, Any]]:
    """Probe, private corrections, joint model, stack: every one with its held-out answers."""
    classes, clients = len(federation.classes), len(federation)
    mean, std = _input_scale(federation)
    recipes = [base.recipe]
    if extra:
        recipes.append(Recipe.parse("+".join([base.recipe.name, *extra]), mean, std))

    def class_problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: probe_problem(classes, width, ridge)

    table, chosen, tried = _choose(recipes, found, labels, parts, holdout, class_problem, lambda _: None)
    folds = _folds(table, labels, parts, holdout)
    probe = _final(probe_problem(classes, table.width, chosen.ridge), table, labels, settings, chosen.folds).point
    own, corrections = choose_private(folds, chosen.folds, table.whitening)
    private = [
        fit_private(Sample(x, y), probe, own.ridge, table.whitening) for x, y in zip(table.x, labels, strict=True)
    ]
    answers = {
        "global_probe": [z.log_softmax(1) for z in _held(table, parts, holdout, chosen.folds)],
        "refit_all": _held_mixture(table, parts, holdout, chosen.folds, corrections, held_clients, router),
    }
    told: dict[str, Any] = {
        "probe": {"recipe": table.recipe.name, **_told(chosen, table)},
        "probe_candidates": tried,
        "private": {"ridge": own.ridge, "held_out_loss": own.loss, "held_out_accuracy": own.accuracy},
    }
    joint = None
    work = sum(len(y) for y in labels) * table.width * clients * classes
    wanted = settings.joint
    if wanted is None:
        wanted = work <= JOINT_WORK["cuda" if probe.is_cuda else "cpu"]
    if wanted:
        pairs = [joint_label(i, y, classes) for i, y in enumerate(labels)]
        picked = choose_ridge(
            lambda ridge: joint_problem(clients, classes, table.width, ridge, probe.device),
            _pooled_folds(table, pairs, parts, holdout),
            table.whitening,
            ridges=STRENGTHS[1:],
            rounds=20,
        )
        problem = joint_problem(clients, classes, table.width, picked.ridge, probe.device)
        joint = _final(problem, table, pairs, settings, picked.folds).point
        answers["joint"] = [joint_classes(z, clients) for z in _held(table, parts, holdout, picked.folds)]
        told["joint"] = _told(picked, table)
    stacks = {"stacked": _stack(answers, labels)}
    told["stacked"] = dict(stacks["stacked"].weights)
    like = table.x[0]
    heads = LinearHeads(
        table.recipe,
        Scaler(table.scaler.mean.to(like), table.scaler.scale.to(like)),
        probe.to(like),
        None if joint is None else joint.to(like),
        stacks,
    )
    return heads, {n: head.to(like) for n, head in zip(federation.names, private, strict=True)}, told


def _held_mixture(
    table: _Table,
    parts: Sequence[Tensor],
    holdout: Holdout,
    probes: Sequence[Tensor],
    corrections: Sequence[Sequence[Tensor]],
    held_clients: Sequence[Tensor],
    router: Router,
) -> list[Tensor]:
    """Log class probabilities of all clients' refitted heads, mixed by the router, on held-out samples."""
    found = []
    for x, part, logits in zip(table.x, parts, held_clients, strict=True):
        mixed = torch.full((len(x), len(probes[0])), torch.nan, dtype=torch.float64, device=x.device)
        for fold in range(holdout.used):
            inside = (part == fold).to(x.device)
            rows = x[inside]
            answers = torch.stack([logits_at(rows, probes[fold] + head).log_softmax(1) for head in corrections[fold]])
            weights = (logits[inside] / router.calibration.temperature).log_softmax(1)
            mixed[inside] = consult(weights, answers)
        found.append(mixed)
    return found


def _stack(answers: Mapping[str, Sequence[Tensor]], labels: Sequence[Tensor]) -> Stack:
    names = list(answers)
    clients = []
    for number, y in enumerate(labels):
        rows = torch.stack([answers[name][number] for name in names])
        seen = ~rows[0, :, 0].isnan()
        clients.append((rows[:, seen], y[seen]))
    return fit_stack(names, clients)
