"""The server's half of the class heads, by letters: probe, joint model and stack; corrections stay on their sites.

What ``feddrm fit-router`` has beside these, the mixture of all clients' corrected heads in the stack, needs every
head's answer about other sites' held-out samples: single samples' features would have to travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from feddrm.deploy.server.remote_cohort import Measured, Solver, of_key, table_tensors
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.router import Holdout, Recipe
from feddrm.router.fit.design_matrix import Table, choose_recipe, told_of
from feddrm.router.fit.fit_heads import HEAD_PARTS, LinearHeads, head_candidates
from feddrm.router.fit.head_problems import JOINT_STRENGTHS, STRENGTHS, joint_problem, probe_problem
from feddrm.router.fit.selection import Chosen, RidgePath
from feddrm.router.fit.stacking import Stack, solve_stack
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import Problem, Scaler

if TYPE_CHECKING:
    from feddrm.deploy.server.routing import RoutingSettings

JOINT_ROUNDS = 20


def fit_heads_over(
    solver: Solver,
    measured: Measured,
    base: Recipe,
    extra: Sequence[str],
    holdout: Holdout,
    brief: RunSpec,
    settings: RoutingSettings,
) -> tuple[LinearHeads, dict[str, Any]]:
    """The heads that the server may hold, and how they were chosen; every site writes its own correction down."""
    classes, clients = len(brief.classes), len(brief.names)
    holdout = Holdout(holdout.parts, min(HEAD_PARTS, holdout.used))
    names = head_candidates(base.name, extra, list(measured.scalers))
    recipes = [Recipe.parse(name, *brief.scale) for name in names]

    def class_problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: probe_problem(classes, width, ridge)

    choose = solver.choice("class", class_problem)
    table, chosen, tried = choose_recipe(recipes, measured.table, choose, holdout, lambda _: None)
    problem = probe_problem(classes, table.width, chosen.ridge)
    probe = solver.fit_all(table, "class", problem, chosen.folds, settings.rounds, settings.tolerance).at
    own = _corrections(solver, table, chosen, probe)
    told: dict[str, Any] = {
        "probe": {"recipe": table.recipe.name, **told_of(chosen, table)},
        "probe_candidates": tried,
        "private": {"ridge": own.ridge, "held_out_loss": own.loss, "held_out_accuracy": own.accuracy},
    }
    joint, joint_folds = None, None
    if settings.joint:

        def pair_problem(width: int) -> Callable[[float], Problem]:
            return lambda ridge: joint_problem(clients, classes, width, ridge, probe.device)

        pick = solver.choice("pair", pair_problem)
        picked = next(iter(pick([(table, JOINT_STRENGTHS)], holdout, JOINT_ROUNDS)))[1]
        problem, joint_folds = pair_problem(table.width)(picked.ridge), picked.folds
        joint = solver.fit_all(table, "pair", problem, picked.folds, settings.rounds, settings.tolerance).at
        told["joint"] = told_of(picked, table)
    stack = _stack(solver, table, chosen.folds, joint_folds)
    told["stacked"] = dict(stack.weights)
    heads = LinearHeads(
        table.recipe,
        Scaler(table.scaler.mean.float(), table.scaler.scale.float()),
        probe.float(),
        None if joint is None else joint.float(),
        {"stacked": stack},
    )
    return heads, told


def _corrections(solver: Solver, table: Table, probes: Chosen, probe: Tensor) -> Chosen:
    """Two letters: what corrections of every strength are worth on held-out samples, then the best for each site."""
    folds = range(len(probes.folds))
    tensors = {**table_tensors(table), **{f"point/{fold}": probes.folds[fold] for fold in folds}}
    told = {"table": table.recipe.name, "folds": len(folds), "ridges": list(STRENGTHS)}
    scores = solver.total({"step": "corrections", **told}, tensors)
    path = RidgePath(STRENGTHS, len(folds))
    while path.ridge is not None:
        path.take([], [of_key(scores, f"{STRENGTHS.index(path.ridge)}.{fold}") for fold in folds])
    best = path.chosen
    header = {"step": "keep", "table": table.recipe.name, "ridge": best.ridge}
    solver.everybody(header, {**table_tensors(table), "point/probe": probe})
    return best


def _stack(solver: Solver, table: Table, probes: Sequence[Tensor], joints: Sequence[Tensor] | None) -> Stack:
    """The scalars of probe and joint model."""
    names = ["global_probe"] if joints is None else ["global_probe", "joint"]
    told = {"step": "curves", "table": table.recipe.name, "folds": len(probes), "joint": joints is not None}
    points = {f"point/probe.{fold}": point for fold, point in enumerate(probes)}
    points |= {f"point/joint.{fold}": point for fold, point in enumerate(joints or ())}

    def curves(at: Tensor) -> ClientSums:
        return solver.total(told, {**table_tensors(table), **points, "weights": at})

    return solve_stack(names, curves)
