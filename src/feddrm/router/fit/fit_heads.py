"""Fitting the class heads on a router's features: probe, private corrections, joint model, stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.router.features.base import Recipe
from feddrm.router.fit.design_matrix import (
    RouterSettings,
    Table,
    choose_recipe,
    fit_all,
    folds_of,
    held_out,
    input_scale,
    local_choice,
    local_tables,
    pooled_folds,
    told_of,
)
from feddrm.router.fit.head_problems import (
    JOINT_STRENGTHS,
    STRENGTHS,
    joint_classes,
    joint_label,
    joint_problem,
    private_problem,
    private_samples,
    probe_problem,
)
from feddrm.router.fit.selection import Holdout, choose_ridge
from feddrm.router.fit.stacking import Stack, fit_stack
from feddrm.router.policy import consult
from feddrm.router.router import Router
from feddrm.router.solver.solve import Problem, Sample, Scaler, logits_at, solve

HEAD_PARTS = 2  # held out in turn at most: enough for a few strengths and scalars
JOINT_WORK = {"cpu": 5e8, "cuda": 3e13}  # multiplications per round; where there are more, the joint model is left out


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


def fit_heads(
    base: Table,
    found: Sequence[Mapping[str, Tensor]],
    labels: Sequence[Tensor],
    parts: Sequence[Tensor],
    holdout: Holdout,
    federation: Federation,
    router: Router,
    held_clients: Sequence[Tensor],
    extra: Sequence[str],
    settings: RouterSettings,
    published: Sequence[Tensor] = (),
) -> tuple[LinearHeads, dict[str, Tensor], dict[str, Any]]:
    """Probe, private corrections, joint model, stack: every one with its held-out answers."""
    classes, clients = len(federation.classes), len(federation)
    holdout = Holdout(holdout.parts, min(HEAD_PARTS, holdout.used))
    mean, std = input_scale(federation)
    # Features that do not tell clients apart may still tell classes apart.
    recipes = [Recipe.parse(name, mean, std) for name in head_candidates(base.recipe.name, extra, list(found[0]))]

    def class_problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: probe_problem(classes, width, ridge)

    choose = local_choice(labels, parts, class_problem)
    table, chosen, tried = choose_recipe(recipes, local_tables(found), choose, holdout, lambda _: None)
    probe = fit_all(probe_problem(classes, table.width, chosen.ridge), table, labels, settings, chosen.folds).point
    folds = [
        ([private_samples(outside, point)], [private_samples(inside, point)])
        for (outside, inside), point in zip(folds_of(table, labels, parts, holdout), chosen.folds, strict=True)
    ]

    def own_problem(ridge: float) -> Problem:
        return private_problem(classes, table.width, ridge, clients)

    own = choose_ridge(own_problem, folds, table.whitening, ridges=STRENGTHS)
    everyone = private_samples([Sample(x, y) for x, y in zip(table.x, labels, strict=True)], probe)
    start = torch.stack(list(own.folds)).mean(0)
    private = solve(own_problem(own.ridge), [everyone], table.whitening, start=start, rounds=settings.rounds).point
    answers = {
        "global_probe": [z.log_softmax(1) for z in held_out(table, parts, holdout, chosen.folds)],
        "refit_all": _held_mixture(table, parts, holdout, chosen.folds, own.folds, held_clients, router),
    }
    told: dict[str, Any] = {
        "probe": {"recipe": table.recipe.name, **told_of(chosen, table)},
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
            pooled_folds(table, pairs, parts, holdout),
            table.whitening,
            ridges=JOINT_STRENGTHS,
            rounds=20,
        )
        problem = joint_problem(clients, classes, table.width, picked.ridge, probe.device)
        joint = fit_all(problem, table, pairs, settings, picked.folds).point
        answers["joint"] = [joint_classes(z, clients) for z in held_out(table, parts, holdout, picked.folds)]
        told["joint"] = told_of(picked, table)
    stacks = {"stacked": _stack(answers, labels)}
    if published:
        # The published heads have been trained on these very samples: they are trusted too much here.
        mixed = [
            consult((logits / router.calibration.temperature).log_softmax(1), said)
            for logits, said in zip(held_clients, published, strict=True)
        ]
        stacks["stacked_published"] = _stack({**answers, "consult_all": mixed}, labels)
    told |= {name: dict(stack.weights) for name, stack in stacks.items()}
    like = table.x[0]
    heads = LinearHeads(
        table.recipe,
        Scaler(table.scaler.mean.to(like), table.scaler.scale.to(like)),
        probe.to(like),
        None if joint is None else joint.to(like),
        stacks,
    )
    each = torch.split(private.to(like), classes)
    return heads, dict(zip(federation.names, each, strict=True)), told


def head_candidates(base: str, extra: Sequence[str], everything: Sequence[str]) -> list[str]:
    """Recipes worth trying for class heads: the router's own, with the class projection, and all there is."""
    return list(dict.fromkeys([base, "+".join([base, *extra]), "+".join(everything)]))


def _held_mixture(
    table: Table,
    parts: Sequence[Tensor],
    holdout: Holdout,
    probes: Sequence[Tensor],
    corrections: Sequence[Tensor],
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
            heads = torch.split(corrections[fold], len(probes[fold]))
            answers = torch.stack([logits_at(rows, probes[fold] + head).log_softmax(1) for head in heads])
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
