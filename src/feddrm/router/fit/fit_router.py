"""Fitting the exact router to a cohort of clients: features, held-out choices, fits, calibration, heads.

Ridge strengths, features, temperature and stacking weights come from samples that are held out of the fits
(:mod:`feddrm.router.fit.selection`). The fits that are kept use all training samples with the strengths so chosen.
Test samples set the thresholds, which decide no label (:mod:`feddrm.router.fit.calibration`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.errors import FeddrmError
from feddrm.evaluation import Queries
from feddrm.models import Net
from feddrm.router.artifact import TASK, Artifact, load_heads, load_router, make_artifact, read_manifest
from feddrm.router.features.base import Leaves, Recipe, part_widths, possible_features
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.calibration import calibrate
from feddrm.router.fit.cohort import Cohort, Facts, HeldOutRouter, Trunk
from feddrm.router.fit.fit_competence import FittedCompetence, competence_left_out, fit_competence
from feddrm.router.fit.fit_heads import LinearHeads, RouterFit, fit_heads
from feddrm.router.fit.local_cohort import LocalCohort, Published
from feddrm.router.fit.ridge_path import Chosen
from feddrm.router.fit.selection import Progress, Softmax, choose_recipe
from feddrm.router.fit.stacking import Stack
from feddrm.router.query_drift import MOST_CLIENTS, WINDOW
from feddrm.router.router import Router
from feddrm.router.settings import MANY, Holdout, RouterSettings
from feddrm.router.solver.problem import Problem, Scaler
from feddrm.rules import Competence
from feddrm.threads import router_kernels

log = logging.getLogger("feddrm.router")


@dataclass(frozen=True, eq=False)
class FittedRouter:
    """The server's router and heads, the clients' private corrections that are here, and how all was chosen."""

    router: Router
    heads: LinearHeads | None
    private: Mapping[str, Tensor]
    chosen: Mapping[str, Any]
    facts: Facts
    seconds: Mapping[str, float] = field(default_factory=dict)

    def save(self, folder: Path, model: Mapping[str, Any]) -> None:
        """Write the artifact."""
        self.artifact(model).write(folder)

    def artifact(self, model: Mapping[str, Any]) -> Artifact:
        """What the server may hold, and no correction. ``model`` are the network's settings."""
        heads = self.heads
        return make_artifact(
            self.router,
            model=model,
            classes=len(self.facts.classes),
            heads=None if heads is None else heads.tensors(),
            notes={
                "columns": None if self.facts.columns is None else list(self.facts.columns),
                "classes": list(self.facts.classes),
                "chosen": self.chosen,
                "heads": None if heads is None else heads.recipe.as_list(),
                "stacks": {} if heads is None else {name: dict(s.weights) for name, s in heads.stacks.items()},
                **({} if self.facts.task.classifies else {TASK: self.facts.task.as_dict()}),
            },
            new_fit=True,
        )

    @classmethod
    def load(cls, folder: Path, facts: Facts, private: Mapping[str, Tensor], device: str) -> FittedRouter:
        """The inverse of :meth:`save`; ``private`` are the clients' corrections, which the artifact has not."""
        notes, router = read_manifest(folder)["notes"], load_router(folder, device)
        heads, recipe = ({name: value.to(device) for name, value in load_heads(folder).items()}, notes.get("heads"))
        if not heads or recipe is None:
            return cls(router, None, {}, notes.get("chosen", {}), facts)
        linear = LinearHeads(
            Recipe.of(recipe),
            Scaler(heads["mean"], heads["scale"]),
            heads["probe"],
            heads.get("joint"),
            {name: Stack(weights) for name, weights in notes["stacks"].items()},
        )
        own = {name: value.to(device) for name, value in private.items()}
        return cls(router, linear, own, notes.get("chosen", {}), facts)


def fit_router(
    net: Net | None,
    shared: Leaves,
    federation: Federation,
    settings: RouterSettings | None = None,
    *,
    published: Published | None = None,
    test: Queries | None = None,
    on_step: Progress | None = None,
) -> FittedRouter:
    """Fit the exact router and, where asked, the heads to a federation whose samples are here.

    ``shared`` are the leaves that the server holds. Without a net and leaves (None, {}) the router looks at the samples
    themselves and needs no training. ``published``, the clients' own models, allow one more stack. ``test`` are the
    test samples as they are evaluated, for the thresholds; without it, whole.
    """
    settings = (settings or RouterSettings()).for_task(federation.task)
    with router_kernels(int(federation.sizes.sum())):
        cohort = LocalCohort(federation, settings, published, test)
        return fit_cohort(cohort, Trunk(net, dict(shared)), settings, on_step)


def fit_cohort(cohort: Cohort, trunk: Trunk, settings: RouterSettings, on_step: Progress | None = None) -> FittedRouter:
    """Fit the exact router and, where asked, the heads, wherever the clients are."""
    settings.check()
    report = on_step or (lambda _: None)
    clock, facts = Clock(), cohort.facts
    usable, recipes, everything = worth_trying(trunk, facts, settings)
    holdout = settings.holdout or Holdout.suggested(facts.samples)
    if not holdout.leaves_samples(facts.sizes):
        raise FeddrmError(
            f"each of the {len(facts.names)} clients has 1 training sample: held out, it leaves nothing to fit: give "
            "clients at least 2 training samples"
        )
    report("features")
    cohort.measure(everything, usable, holdout)
    clock("features")
    design, chosen, trials, compared = choose_on_some(cohort, recipes, holdout, settings, report)
    softmax = clients_apart(cohort, settings)
    folds, state = softmax.finish(design, chosen)
    if compared < len(facts.names):
        chosen = softmax.scored(design, chosen, folds)
    held_out = cohort.held_out_router(design, folds, state.iterate)
    recipe = design.recipe
    router = assemble_router(cohort, usable, design, state.iterate, held_out, everything)
    clock("router")
    progress = {"rounds": int(state.rounds), "converged": bool(state.done)}
    choices: dict[str, Any] = {
        "router": {"recipe": recipe.name, **chosen.as_dict(design.width), **progress},
        "candidates": trials,
        **({"compared": compared} if compared < len(facts.names) else {}),
        "holdout": {"parts": holdout.parts, "used": holdout.used},
        "crops": cohort.crops,
        **({"views": settings.views} if settings.views > 1 else {}),
    }
    left_out = [*cohort.left_out]
    if len(facts.names) > MOST_CLIENTS:
        left_out.append(
            f"drift test: left out, {len(facts.names)} clients are more than the {WINDOW} queries of a window"
        )
    if not settings.heads:
        return FittedRouter(router, None, {}, choices | _noted(left_out), facts, clock.seconds)
    report("heads")
    fit = RouterFit(recipe, everything, held_out, router.calibration.temperature)
    heads, private, head_choices, held_out_heads = fit_heads(cohort, fit, holdout, settings)
    clock("heads")
    left_out += head_choices.pop("left_out", [])
    unjudged = competence_left_out(cohort, holdout, settings) if settings.competence else None
    choices |= head_choices | _noted([*left_out, *([unjudged] if unjudged else [])])
    if settings.competence and unjudged is None:
        report("competence")
        competence = fit_competence(cohort, design, held_out_heads, holdout, settings)
        clock("competence")
        router = with_competence(router, competence)
        choices["competence"] = competence.chosen
    return FittedRouter(router, heads, private, choices, facts, clock.seconds)


def clients_apart(cohort: Cohort, settings: RouterSettings) -> Softmax:
    """The router's fits: they tell the clients of a cohort apart."""
    clients = len(cohort.facts.names)
    return Softmax(cohort, "client", lambda width, ridge: Problem(clients, width, ridge), settings)


def choose_on_some(
    cohort: Cohort, recipes: Sequence[Recipe], holdout: Holdout, settings: RouterSettings, on_step: Progress
) -> tuple[DesignMatrix, Chosen, dict[str, Any], int]:
    """Recipe and ridge for all clients, chosen on MANY of them; last, on how many.

    A round costs clients times samples. A client's weights depend on its own samples and on the mean of the others',
    which few clients show as well as many. So what suits a client is the same ridge on the *sum* of losses: that on
    their mean falls with the number of samples.
    """
    some = cohort.some(MANY)
    if not holdout.leaves_samples(some.facts.sizes):
        some = cohort
    design, chosen, trials = choose_recipe(clients_apart(some, settings), recipes, holdout, on_step)
    if some is cohort:
        return design, chosen, trials, len(cohort.facts.names)
    share = some.facts.samples / cohort.facts.samples
    alone = {f.name: trials[f.name]["ridge"] for f in design.recipe.features}
    whole = cohort.design(design.recipe, alone if len(alone) > 1 else None)
    zero = torch.zeros(len(cohort.facts.names), whole.width + 1, dtype=torch.float64, device=cohort.like.device)
    chosen = replace(chosen, ridge=share * chosen.ridge, folds=(zero,) * len(chosen.folds))
    return whole, chosen, trials, len(some.facts.names)


def _noted(left_out: Sequence[str]) -> dict[str, Any]:
    """The lines about parts that a fit left out, for the log, the summary and the artifact."""
    for line in left_out:
        log.info(line)
    return {"left_out": list(left_out)} if left_out else {}


def with_competence(router: Router, fitted: FittedCompetence) -> Router:
    """The router with the fitted competence, and with its percentiles among the confidences."""
    confidence = {**router.calibration.confidence, Competence.name: fitted.confidence}
    calibration = replace(router.calibration, confidence=confidence)
    return replace(router, competence=fitted.point.to(router.weight), calibration=calibration)


def assemble_router(
    cohort: Cohort, trunk: Trunk, design: DesignMatrix, point: Tensor, held_out: HeldOutRouter, measured: Recipe
) -> Router:
    """The router with a fitted point, calibrated on held-out samples. ``measured`` are all features of the fit."""
    facts, like, recipe = cohort.facts, cohort.like, design.recipe
    decorrelated = decorrelated_inputs(cohort, trunk, design)
    calibration = calibrate(held_out, facts.log_prior, decorrelated)
    if facts.query_views.crops:  # queries are not cropped at random, so they would always differ
        calibration = replace(calibration, reference=None)
    return Router(
        names=facts.names,
        recipe=recipe,
        scaler=Scaler(design.scaler.mean.to(like), design.scaler.scale.to(like)),
        weight=point[:, :-1].to(like),
        bias=point[:, -1].to(like),
        log_prior=facts.log_prior.to(like),
        calibration=calibration,
        net=trunk.net if recipe.needs else None,
        leaves={leaf: value for leaf, value in trunk.leaves.items() if recipe.wants(leaf)},
        shape=facts.shape,
        input_mean=facts.scale[0],
        input_std=facts.scale[1],
        own_scales=facts.own_scales,
        columns=facts.columns,
        schema=facts.schema,
        usual=_usual(cohort, measured, design),
        query_views=facts.query_views,
        means=torch.stack([rows.mean(0) for rows in design.rows]) if design.rows else None,
        decorrelated=None if decorrelated is None else decorrelated.to(like),
    )


def decorrelated_inputs(cohort: Cohort, trunk: Trunk, design: DesignMatrix) -> DecorrelatedInputs | None:
    """The decorrelated inputs of a table; None where they are not known."""
    shape = cohort.facts.shape
    if not DecorrelatedInputs.known(shape, cohort.facts.samples):
        return None
    blank = torch.zeros(1, *shape, device=cohort.like.device)
    net = trunk.net if design.recipe.needs else None
    return DecorrelatedInputs.of(design, part_widths(design.recipe, net, trunk.leaves, blank))


def _usual(cohort: Cohort, measured: Recipe, design: DesignMatrix) -> Scaler | None:
    """Pooled means and deviations of a table's inputs, which the feature ``raw`` measures; None without it."""
    raw = Recipe(tuple(feature for feature in measured.features if feature.name == "raw"))
    if len(cohort.facts.shape) != 1 or not raw.features:
        return None
    scaler = design.scaler if design.recipe == raw else cohort.scaler(raw)
    return Scaler(scaler.mean.to(cohort.like), scaler.scale.to(cohort.like))


def candidates(possible: Sequence[str]) -> list[str]:
    """The recipes worth trying.

    The client branch is not among them. It was trained to name the client of every training sample, so on held-out
    training samples it looks better than it is.
    """
    known = [name for name in ("raw", "multiscale", "colour") if name in possible]
    if not known:
        raise FeddrmError("no feature can be computed from what is shared: give a method with a shared trunk")
    names = [*known, "+".join(known)]
    if len(known) == 3:
        names.append("multiscale+colour")
    return list(dict.fromkeys(names))


def worth_trying(trunk: Trunk, facts: Facts, settings: RouterSettings) -> tuple[Trunk, list[Recipe], Recipe]:
    """The trunk where it is shared, the recipes to try, and one recipe of all features that the fits look at."""
    shared = any(leaf.startswith("trunk.") for leaf in trunk.leaves)
    usable = Trunk(trunk.net if shared else None, trunk.leaves)
    possible = possible_features(facts.shape, usable.net, usable.leaves)
    names = [settings.features] if settings.features is not None else candidates(possible)
    recipes = [Recipe.parse(name, *facts.scale) for name in names]
    for recipe in recipes:
        recipe.check(facts.shape, usable.net)
    extra = ["hidden"] if settings.heads and "hidden" in possible else []  # for the class heads alone
    everything = Recipe.parse("+".join([*(f.name for r in recipes for f in r.features), *extra]), *facts.scale)
    return usable, recipes, everything


class Clock:
    """The seconds between calls, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def __call__(self, name: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now
