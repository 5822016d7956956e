"""The exact router over a network: which features pay, its fit, its thresholds, the class heads; by letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feddrm.deploy.server.calibrating import calibrate
from feddrm.deploy.server.heads import fit_heads_over
from feddrm.deploy.server.remote_cohort import Ask, Solver
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.errors import SettingError
from feddrm.methods import Tensors
from feddrm.router import Holdout, Recipe, Router, save_router
from feddrm.router.fit.design_matrix import choose_recipe, told_of
from feddrm.router.fit.fit_router import worth_trying
from feddrm.router.solver.problem import Problem, Scaler


@dataclass(frozen=True)
class RoutingSettings:
    """How to fit. ``features`` None tries on held-out samples which pay, as ``feddrm fit-router`` does.

    ``path_rounds`` bounds the fits that only choose, ``rounds`` those that are kept. ``heads`` fits the exact
    class heads too, with some three times as many letters; ``joint`` their joint model, with still more.
    """

    features: str | None = None
    rounds: int = 60
    path_rounds: int = 12
    tolerance: float = 1e-6
    heads: bool = False
    joint: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuse what could never be fitted."""
        if self.rounds < 1 or self.path_rounds < 1 or not self.tolerance > 0:
            raise SettingError(
                f"routing: rounds={self.rounds}, path_rounds={self.path_rounds}, tolerance={self.tolerance}: "
                f"give at least one round of each, and a positive tolerance"
            )
        if self.features is not None:
            Recipe.parse(self.features)


def fit_over(ask: Ask, brief: RunSpec, shared: Tensors, settings: RoutingSettings, folder: Path) -> dict[str, Any]:
    """Fit, and write ``router/``; how it was chosen, in plain values."""
    settings.check()
    clients = len(brief.names)
    usable, recipes, everything, extra = worth_trying(
        brief.make_net().requires_grad_(False), shared, brief.shape, brief.scale, settings.features, settings.heads
    )
    holdout = Holdout.suggested(sum(brief.sizes))
    told = {"parts": holdout.parts, "used": holdout.used, "seed": settings.seed, "sizes": list(brief.sizes)}
    solver = Solver(ask, brief.names, settings.path_rounds)
    leaves = {leaf: value for leaf, value in shared.items() if everything.wants(leaf)}
    measured = solver.measure(everything, leaves, told)

    def problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: Problem(clients, width, ridge)

    table, chosen, tried = choose_recipe(
        recipes, measured.table, solver.choice("client", problem), holdout, lambda _: None
    )
    asked = table, "client", problem(table.width)(chosen.ridge)
    folds = solver.finish_folds(*asked, chosen.folds, settings.rounds, settings.tolerance)
    state = solver.fit_all(*asked, folds, settings.rounds, settings.tolerance)
    log_prior = torch.tensor(brief.sizes, dtype=torch.float64).div(sum(brief.sizes)).log()
    router = Router(
        names=brief.names,
        recipe=table.recipe,
        scaler=Scaler(table.scaler.mean.float(), table.scaler.scale.float()),
        weight=state.at[:, :-1].float(),
        bias=state.at[:, -1].float(),
        log_prior=log_prior.float(),
        calibration=calibrate(solver, table, folds, log_prior),
        net=usable if table.recipe.needs else None,
        leaves={leaf: value for leaf, value in shared.items() if table.recipe.wants(leaf)},
        shape=brief.shape,
        input_mean=brief.scale[0],
        input_std=brief.scale[1],
    )
    fitted = {"rounds": int(state.rounds), "converged": bool(state.done)}
    how: dict[str, Any] = {
        "router": {"recipe": table.recipe.name, **told_of(chosen, table), **fitted},
        "candidates": tried,
        "holdout": {"parts": holdout.parts, "used": holdout.used},
    }
    heads = None
    if settings.heads:
        heads, more = fit_heads_over(solver, measured, table.recipe, extra, holdout, brief, settings)
        how |= more
    notes = {
        "columns": None if brief.columns is None else list(brief.columns),
        "chosen": how,
        "heads": None if heads is None else heads.recipe.as_list(),
        "stacks": {} if heads is None else {name: dict(stack.weights) for name, stack in heads.stacks.items()},
    }
    tensors = None if heads is None else heads.tensors()
    save_router(folder, router, model=dict(brief.model), classes=len(brief.classes), heads=tensors, notes=notes)
    return how
