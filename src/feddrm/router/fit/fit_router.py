"""From a trained federation to a router: features, held-out choices, the exact fits, in one call.

What is fitted on what: ridge strengths, features, temperature, thresholds and stacking scalars come
from samples held out of the fits (:mod:`feddrm.router.fit.selection`); the fits that are kept use all
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
from feddrm.errors import FeddrmError
from feddrm.models import Net
from feddrm.router.features.base import Leaves, Recipe, extract, possible_features
from feddrm.router.fit.design_matrix import (
    Progress,
    RouterSettings,
    Table,
    choose_recipe,
    finish_folds,
    fit_all,
    held_out,
    input_scale,
    local_choice,
    local_tables,
    own_scales,
    pooled_folds,
    told_of,
)
from feddrm.router.fit.fit_heads import LinearHeads, fit_heads
from feddrm.router.fit.selection import Holdout
from feddrm.router.policy import RULES, by_rule, conformal_threshold, fit_temperature
from feddrm.router.router import Calibration, Router
from feddrm.router.solver.solve import Fit, Problem, Scaler

ROUTER = int.from_bytes(b"rout", "big")
MISSES = (0.01, 0.05, 0.1, 0.2)
STRANGER = 1.5  # half as strange again as the strangest held-out sample: no query of this federation at all

Published = Callable[[Tensor], Tensor]  # log class probabilities [m, n, K] of network inputs


@dataclass(frozen=True, eq=False)
class FittedRouter:
    """The server's router and heads; every client's private correction apart from them; how it was chosen."""

    router: Router
    heads: LinearHeads | None
    private: Mapping[str, Tensor]
    chosen: Mapping[str, Any]
    seconds: Mapping[str, float] = field(default_factory=dict)


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
        tried.append("multiscale+colour")
    return list(dict.fromkeys(tried))


def worth_trying(
    net: Net | None,
    shared: Leaves,
    shape: tuple[int, ...],
    scale: tuple[tuple[float, ...], tuple[float, ...]],
    features: str | None,
    heads: bool,
) -> tuple[Net | None, list[Recipe], Recipe, list[str]]:
    """The network as far as it is shared, recipes to try, all their features, and those that only heads look at.

    ``features`` is the one recipe that is wanted, None where the candidates are to be tried.
    """
    usable = net if net is not None and any(leaf.startswith("trunk.") for leaf in shared) else None
    possible = possible_features(shape, usable, shared)
    names = [features] if features is not None else candidates(possible)
    recipes = [Recipe.parse(name, *scale) for name in names]
    for recipe in recipes:
        recipe.check(shape, usable)
    extra = ["hidden"] if heads and "hidden" in possible else []
    everything = Recipe.parse("+".join([*(f.name for r in recipes for f in r.features), *extra]), *scale)
    return usable, recipes, everything, extra


def fit_router(
    net: Net | None,
    shared: Leaves,
    federation: Federation,
    settings: RouterSettings | None = None,
    *,
    published: Published | None = None,
    on_step: Progress | None = None,
) -> FittedRouter:
    """Fit the exact router and, where asked, the heads, on the federation's training data.

    ``shared`` are the leaves that the server holds. ``published``, the clients' own models, are asked
    about training samples for one more stack, ``stacked_published``.
    """
    settings = settings or RouterSettings()
    settings.check()
    say = on_step or (lambda _: None)
    clock = _Clock()
    usable, recipes, everything, extra = worth_trying(
        net, shared, federation.shape, input_scale(federation), settings.features, settings.heads
    )
    say("features")
    published = published if settings.heads else None
    crops = settings.crops_for(federation)
    found, labels, said = _training_features(everything, usable, shared, federation, settings.seed, crops, published)
    clock("features")
    holdout = settings.holdout or Holdout.suggested(int(federation.sizes.sum()))
    parts = holdout.draw(federation.sizes.tolist(), settings.seed, crops)
    clients = [torch.full_like(y, i) for i, y in enumerate(labels)]

    def client_problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: Problem(len(federation), width, ridge)

    choose = local_choice(clients, parts, client_problem)
    table, chosen, tried = choose_recipe(recipes, local_tables(found), choose, holdout, say)
    problem = Problem(len(federation), table.width, chosen.ridge)
    folds = finish_folds(problem, pooled_folds(table, clients, parts, holdout), table, settings, chosen.folds)
    fit = fit_all(problem, table, clients, settings, folds)
    held = held_out(table, parts, holdout, folds)
    router = _router(fit, table, federation, held, usable, shared)
    clock("router")
    told: dict[str, Any] = {
        "router": {
            "recipe": table.recipe.name,
            **told_of(chosen, table),
            "rounds": fit.rounds,
            "converged": fit.converged,
        },
        "candidates": tried,
        "holdout": {"parts": holdout.parts, "used": holdout.used},
        "crops": crops,
    }
    if not settings.heads:
        return FittedRouter(router, None, {}, told, clock.seconds)
    say("heads")
    heads, private, more = fit_heads(
        table, found, labels, parts, holdout, federation, router, held, extra, settings, said
    )
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


def _training_features(
    recipe: Recipe,
    net: Net | None,
    shared: Leaves,
    federation: Federation,
    seed: int,
    crops: int,
    published: Published | None,
) -> tuple[list[dict[str, Tensor]], list[Tensor], list[Tensor]]:
    """Every client's features (on the client) and labels, ``crops`` times over where the data has random crops.

    Third what the ``published`` models say about the same inputs, where asked for.
    """
    found, labels, said = [], [], []
    for number, client in enumerate(federation.clients):
        rows, answers = [], []
        for copy in range(crops):
            x = training_view(federation, number, seed, copy)
            rows.append(extract(recipe, net, shared, x))
            if published is not None:
                answers.append(published(x))
        found.append({name: torch.cat([row[name] for row in rows]) for name in rows[0]})
        labels.append(client.train.y.repeat(crops))
        if answers:
            said.append(torch.cat(answers, dim=1))
    return found, labels, said


def training_view(federation: Federation, number: int, seed: int, copy: int = 0) -> Tensor:
    """A client's training samples as the network sees them, by the ``copy``-th draw of crops where there are any."""
    client, boxes = federation.clients[number], None
    if federation.crop is not None:
        height, width = federation.shape[-2:]
        generator = generator_for(seed, ROUTER, number, copy)
        boxes = federation.crop.boxes(len(client.train), height, width, generator).to(client.train.x.device)
    return client.view(client.train.x, boxes)


def _router(
    fit: Fit,
    table: Table,
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
    mean, std = input_scale(federation)
    return Router(
        names=federation.names,
        recipe=table.recipe,
        scaler=Scaler(table.scaler.mean.to(like), table.scaler.scale.to(like)),
        weight=fit.point[:, :-1].to(like),
        bias=fit.point[:, -1].to(like),
        log_prior=log_prior.to(like),
        calibration=Calibration(temperature, confidence, conformal, STRANGER * float(strange.max())),
        net=net if table.recipe.needs else None,
        leaves={leaf: value for leaf, value in shared.items() if table.recipe.wants(leaf)},
        shape=federation.shape,
        input_mean=mean,
        input_std=std,
        own_scales=own_scales(federation),
    )


def _quantiles(values: Tensor, grid: Tensor) -> Tensor:
    """As torch.quantile, which refuses more than 16 million values."""
    ordered = values.sort().values
    place = grid * (len(ordered) - 1)
    low = place.long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
