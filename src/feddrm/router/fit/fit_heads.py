"""Fitting the class heads on a router's features: probe, private corrections, joint model, stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from feddrm.router.features.base import Recipe
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import Cohort, HeldOutHeads, HeldOutRouter
from feddrm.router.fit.head_problems import JOINT_STRENGTHS, STRENGTHS, joint_problem, probe_problem
from feddrm.router.fit.ridge_path import Chosen, RidgePath
from feddrm.router.fit.selection import Softmax, choose_recipe
from feddrm.router.fit.stacking import Stack, solve_stack
from feddrm.router.settings import Holdout, RouterSettings
from feddrm.router.solver.problem import Problem, Scaler

HEAD_FOLDS = 2  # held out in turn at most: enough for a few ridges and stacking weights
HEAD_ROUNDS = 60  # unless others are given; the stack is fitted on held-out fits of 20 rounds at most
JOINT_ROUNDS = 20
JOINT_WORK = {"cpu": 5e8, "cuda": 3e12}  # multiplications per round; the joint model is left out where it needs more


@dataclass(frozen=True, eq=False)
class LinearHeads:
    """The server's exact class heads: points [outputs, d + 1] on their own standardised features."""

    recipe: Recipe
    scaler: Scaler
    probe: Tensor
    joint: Tensor | None
    stacks: Mapping[str, Stack]

    def tensors(self) -> dict[str, Tensor]:
        out = {"mean": self.scaler.mean, "scale": self.scaler.scale, "probe": self.probe}
        return out if self.joint is None else {**out, "joint": self.joint}


@dataclass(frozen=True, eq=False)
class RouterFit:
    """What the heads need of the router's fit: its recipe, all measured features, and its held-out scores."""

    recipe: Recipe
    measured: Recipe
    held_out: HeldOutRouter
    temperature: float


def fit_heads(
    cohort: Cohort, router: RouterFit, holdout: Holdout, settings: RouterSettings
) -> tuple[LinearHeads, Mapping[str, Tensor], dict[str, Any], HeldOutHeads]:
    """The heads that the server may hold, the corrections that are here, how all was chosen, and the folds' heads."""
    facts, like = cohort.facts, cohort.like
    classes, clients = len(facts.classes), len(facts.names)
    holdout = holdout.at_most(HEAD_FOLDS)
    rounds = settings.rounds or HEAD_ROUNDS
    settings = replace(settings, rounds=rounds, few_messages=False)
    recipes = [Recipe.parse(name, *facts.scale) for name in head_candidates(router.recipe, router.measured)]
    softmax = Softmax(cohort, "class", lambda width, ridge: probe_problem(classes, width, ridge), settings)
    design, chosen, trials = choose_recipe(softmax, recipes, holdout)
    probe = softmax.fit_all(design, chosen.ridge, chosen.folds).iterate

    private, own = fit_corrections(cohort, design, chosen.folds, probe, rounds)

    joint: Tensor | None = None
    picked: Chosen | None = None
    left_out = joint_left_out(cohort, design.width, settings)
    if left_out is None:

        def pair_problem(width: int, ridge: float) -> Problem:
            return joint_problem(clients, classes, width, ridge, like.device)

        pairs = Softmax(cohort, "pair", pair_problem, settings)
        picked = pairs.choose_one(design, JOINT_STRENGTHS, holdout.used, JOINT_ROUNDS)
        joint = pairs.fit_all(design, picked.ridge, picked.folds).iterate

    joints = None if picked is None else picked.folds
    fitted = HeldOutHeads(design, chosen.folds, own.folds, joints, chosen.ridge, own.ridge)
    answers = cohort.held_out_classes(fitted, router.held_out, router.temperature)
    stacks = {name: solve_stack(models, answers.curves(models)) for name, models in answers.stacks.items()}
    choices: dict[str, Any] = {
        "probe": {"recipe": design.recipe.name, **chosen.as_dict(design.width)},
        "probe_candidates": trials,
        "private": {"ridge": own.ridge, "held_out_loss": own.loss, "held_out_accuracy": own.accuracy},
        **({} if picked is None else {"joint": picked.as_dict(design.width)}),
        **{name: dict(stack.weights) for name, stack in stacks.items()},
        **({"left_out": [left_out]} if left_out else {}),
    }
    heads = LinearHeads(
        design.recipe,
        Scaler(design.scaler.mean.to(like), design.scaler.scale.to(like)),
        probe.to(like),
        None if joint is None else joint.to(like),
        stacks,
    )
    return heads, private, choices, fitted


def fit_corrections(
    cohort: Cohort, design: DesignMatrix, probes: Sequence[Tensor], probe: Tensor, rounds: int
) -> tuple[Mapping[str, Tensor], Chosen]:
    """The clients' corrections that are here, and how their ridge was chosen; ``probes`` were fitted without a fold."""
    corrections = cohort.corrections(design, probes)
    path = RidgePath(STRENGTHS, len(probes))
    while path.ridge is not None:
        path.take(*corrections.scores(path.ridge, path.starts))
    return corrections.keep(path.chosen, probe, rounds), path.chosen


def head_candidates(base: Recipe, measured: Recipe) -> list[str]:
    """The recipes worth trying for class heads: the router's own, with the class projection, and all features.

    Features that do not tell clients apart may still tell classes apart.
    """
    names = [feature.name for feature in measured.features]
    with_projection = [base.name, *(["hidden"] if "hidden" in names else [])]
    return list(dict.fromkeys([base.name, "+".join(with_projection), "+".join(names)]))


def joint_left_out(cohort: Cohort, width: int, settings: RouterSettings) -> str | None:
    """Why the joint model is left out: too large, too slow, or (empty) not asked for; None if it is fitted."""
    if settings.joint is not None:
        return None if settings.joint else ""
    facts, device = cohort.facts, cohort.like.device
    pairs = len(facts.names) * len(facts.classes)
    part = f"joint model of {pairs} pairs of client and class"
    if line := settings.too_large(part, 8 * pairs**2, device):  # of the penalty, which couples all pairs
        return line
    work, most = facts.samples * cohort.crops * width * pairs, JOINT_WORK[device.type]
    return None if work <= most else f"{part}: left out, a round takes {work:.0e} multiplications, more than {most:.0e}"
