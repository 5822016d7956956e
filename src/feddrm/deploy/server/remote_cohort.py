"""A cohort of sites: every question of a router's fit is one message to every site.

Fits that do not depend on each other share their messages, so comparing them takes no more round trips than the
longest of them. Private corrections stay on their sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from feddrm.deploy.site.site_fit import BINS, ROWS, SCALES
from feddrm.deploy.wire.largest_value import read_largest
from feddrm.deploy.wire.messages import Message
from feddrm.errors import FeddrmError
from feddrm.methods import Tensors
from feddrm.moments import Moments
from feddrm.router import Recipe, RouterSettings
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.features.roughness import RoughnessRange
from feddrm.router.fit.cohort import Confidence, Facts, FitRequest, HeldOutHeads, HeldOutRouter, Job, Judged, Trunk
from feddrm.router.fit.feature_blocks import MemberMoments
from feddrm.router.fit.head_problems import STRENGTHS
from feddrm.router.fit.local_cohort import JUDGED
from feddrm.router.fit.ridge_path import Chosen
from feddrm.router.policy import RULES
from feddrm.router.settings import Holdout
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import Scaler, add
from feddrm.router.solver.solve import noise_of

if TYPE_CHECKING:
    from scipy.interpolate import CubicHermiteSpline


@dataclass(frozen=True, eq=False)
class Rows:
    """How many rows each site's answer has, and the rows that are sent to that site alone."""

    counts: Sequence[int] = ()
    own: Sequence[Tensor] = ()

    def of_site(self, number: int) -> int:
        return self.counts[number] if self.counts else 0

    def to_site(self, number: int) -> Tensors:
        return {f"{ROWS}answers": self.own[number]} if self.own else {}


NO_ROWS = Rows()


class Ask(Protocol):
    """A question to every site. Returns the answers by client number, of the sites that answered in time."""

    def __call__(
        self, header: Mapping[str, Any], tensors: Mapping[str, Tensor], rows: Rows = NO_ROWS
    ) -> dict[int, Message]: ...


class SiteMissingError(FeddrmError):
    """A site did not answer a question that needs all sites. The fit starts again when the site is back."""


class RemoteCohort:
    """All sites of a deployed federation, reached through ``ask``.

    With ``pooled`` the answers are masked, and ``ask`` returns their sum as that of one member.
    """

    noise = noise_of(torch.float32)
    like = torch.empty(0)

    def __init__(self, ask: Ask, facts: Facts, crop: bool, settings: RouterSettings, *, pooled: bool = False) -> None:
        self.ask, self.facts, self.seed, self.pooled = ask, facts, settings.seed, pooled
        self.members = 1 if pooled else len(facts.names)
        self.left_out: list[str] = []
        self.crops = settings.crops_on(self.like.device) if crop else 1

    def measure(self, recipe: Recipe, trunk: Trunk, holdout: Holdout) -> None:
        """One message: every site's moments by fold, of all features."""
        header = {
            "step": "fold_moments",
            "recipe": recipe.as_list(),
            "parts": holdout.parts,
            "used": holdout.used,
            "seed": self.seed,
            "sizes": list(self.facts.sizes),
            "crops": self.crops,
            **self.pooling,
        }
        leaves = {leaf: value for leaf, value in trunk.leaves.items() if recipe.wants(leaf)}
        answers = self.everybody(header, leaves)
        if self.pooled:
            answers = _by_client(answers[0], len(self.facts.names))
        widths = {f.name: len(answers[0][f"0/sum/{f.name}"]) for f in recipe.features}
        parts = len(holdout.masks(torch.empty(0)))
        clients = []
        for number, answer in enumerate(answers):
            try:
                clients.append(_moments_of(answer, parts))
            except FeddrmError as error:
                raise FeddrmError(f"{self.facts.names[number]}: {error}") from error
        self.moments, self.holdout = MemberMoments(clients, widths), holdout

    def some(self, clients: int) -> RemoteCohort:
        """All sites: a message to some costs the same as to all."""
        return self

    @property
    def pooling(self) -> dict[str, bool]:
        """What tells a site that its answer will be part of a sum."""
        return {"pooled": True} if self.pooled else {}

    def design(self, recipe: Recipe, ridges: Mapping[str, float] | None = None) -> DesignMatrix:
        """No message: the moments of some columns are a part of those of all columns."""
        return self.moments.design(recipe, ridges)

    def batches(self, jobs: Iterable[Job]) -> Iterator[Sequence[Job]]:
        """All jobs at once: they share their messages."""
        yield list(jobs)

    def gradients(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]
    ) -> dict[str, dict[int, ClientSums]]:
        answers = self.ask(*_question("gradient", requests, points))
        parts = {i: by_part(reply.tensors) for i, reply in answers.items()}
        return {key: {i: part[key] for i, part in parts.items()} for key in requests}

    def scores(self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]) -> dict[str, ClientSums]:
        parts = by_part(self.total(*_question("scores", requests, points)))
        return {key: parts[key] for key in requests}

    def at_zero(self, request: FitRequest) -> tuple[dict[int, ClientSums], ClientSums]:
        """No message."""
        answers, scores = self.moments.at_zero(request)
        return {0: add(list(answers.values()))} if self.pooled else answers, scores

    def evaluate(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor], curved: Collection[str]
    ) -> tuple[dict[str, dict[int, ClientSums]], dict[str, ClientSums]]:
        header, tensors = _question("evaluate", requests, points)
        answers = [by_part(answer) for answer in self.everybody({**header, "curved": sorted(curved)}, tensors)]
        held = [key for key, request in requests.items() if request.fold is not None]
        return (
            {key: {i: answer[f"{key}/fit"] for i, answer in enumerate(answers)} for key in requests},
            {key: add([answer[f"{key}/held"] for answer in answers]) for key in held},
        )

    def score_scatter(self, request: FitRequest, point: Tensor) -> ClientSums:
        return by_part(self.total(*_question("score_scatter", {"fit": request}, {"fit": point})))["fit"]

    def held_out_router(self, design: DesignMatrix, folds: Sequence[Tensor], point: Tensor) -> RemoteHeldOut:
        return RemoteHeldOut(self, design, folds, point)

    def corrections(self, design: DesignMatrix, probes: Sequence[Tensor]) -> RemoteCorrections:
        return RemoteCorrections(self, design, probes)

    def held_out_classes(self, heads: HeldOutHeads, router: HeldOutRouter, temperature: float) -> RemoteClasses:
        return RemoteClasses(self, heads)

    def judge(self, design: DesignMatrix, heads: HeldOutHeads) -> Judged:
        """Three messages: the held-out samples' features, all sites' answers about them, which answers are right.

        The refitted heads answer: a trained network would need more than these features.
        """
        folds, parts = self._drawn(self.holdout), self._drawn(JUDGED)
        seen = [fold < self.holdout.used for fold in folds]
        counts = [int(mask.sum()) for mask in seen]
        names = dict.fromkeys(f.name for of in (design, heads.design) for f in of.recipe.features)
        shared = self.everybody({"step": "held_out_rows", "features": list(names)}, {}, Rows(counts))
        features = {name: torch.cat([answer[f"{ROWS}{name}"] for answer in shared]) for name in names}
        header = {
            "step": "answer_rows",
            "table": heads.design.recipe.name,
            "folds": len(heads.probes),
            "ridge": heads.correction_ridge,
        }
        tensors = {**design_tensors(heads.design), **_points("", heads.probes), "shared/fold": _of(seen, folds)}
        tensors |= {f"shared/{feature.name}": features[feature.name] for feature in heads.design.recipe.features}
        answers = self.everybody(header, tensors, Rows([sum(counts)] * self.members))
        each = torch.split(torch.stack([answer[f"{ROWS}answers"] for answer in answers], dim=1), counts)
        judged = self.everybody({"step": "judge_rows"}, {}, Rows(counts, each))
        x = design.scaler(design.recipe.joined(features))
        return Judged(x, torch.cat([answer[f"{ROWS}right"] for answer in judged]), _of(seen, parts))

    def _drawn(self, holdout: Holdout) -> list[Tensor]:
        """The part of every sample of every site: it follows from the seed."""
        return [holdout.draw(number, size, self.seed, self.crops) for number, size in enumerate(self.facts.sizes)]

    def everybody(
        self, header: Mapping[str, Any], tensors: Mapping[str, Tensor], rows: Rows = NO_ROWS
    ) -> list[ClientSums]:
        """The answers of all sites in the order of their numbers."""
        answers = self.ask(header, tensors, rows)
        if missing := [self.facts.names[i] for i in range(self.members) if i not in answers]:
            raise SiteMissingError(
                f"the router's fit needs {', '.join(missing)}, which did not answer: it starts again"
            )
        return [answers[i].tensors for i in range(self.members)]

    def total(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ClientSums:
        """The sum of all sites' answers."""
        return add(self.everybody(header, tensors))

    def scaler(self, recipe: Recipe) -> Scaler:
        return self.moments.design(recipe).scaler


@dataclass(frozen=True, eq=False)
class RemoteHeldOut:
    """The router's scores of held-out and test samples, which stay on the sites. Confidence travels as counts in bins.

    The slopes of all temperatures take one message: between its scales they are interpolated, to about 1e-9.
    """

    cohort: RemoteCohort
    design: DesignMatrix
    folds: Sequence[Tensor]
    point: Tensor

    def slopes(self, scale: float) -> ClientSums:
        count, slope, even = self._slopes
        at = min(max(scale, SCALES[0]), SCALES[-1])
        sums = {"slope": slope(at), "even": even(at), "bend": slope(at, 1)}
        return {"count": count, **{key: torch.tensor(float(value), dtype=torch.float64) for key, value in sums.items()}}

    @cached_property
    def _slopes(self) -> tuple[Tensor, CubicHermiteSpline, CubicHermiteSpline]:
        """The number of samples, and both slopes as functions of the scale. The bend is the derivative of either."""
        from scipy.interpolate import CubicHermiteSpline

        sums = self.cohort.total({"step": "slope", **self._header}, self._tensors)
        slope, even = (CubicHermiteSpline(SCALES, sums[key].numpy(), sums["bend"].numpy()) for key in ("slope", "even"))
        return sums["count"], slope, even

    def confidence(self, temperature: float, log_prior: Tensor, inputs: DecorrelatedInputs | None = None) -> Confidence:
        header = {"step": "spread", "scale": 1 / temperature, **self.cohort.pooling, **self._header}
        tensors = {**self._tensors, "point/all": self.point, "log_prior": log_prior}
        if inputs is not None:
            tensors |= {"inputs/places": inputs.places, "inputs/matrix": inputs.matrix}
        answers = self.cohort.everybody(header, tensors)
        names = [name for name in ("strange", "rough", "smooth") if name in answers[0]]
        strangest, *rough = (max(read_largest(answer[name]) for answer in answers) for name in names)
        counts = add([{key: value for key, value in answer.items() if key not in names} for answer in answers])

        # The lower edge of a bin: thresholds that promise coverage may only err towards larger sets.
        edges = torch.arange(BINS, dtype=torch.float64) / BINS
        top = {rule: edges.repeat_interleave(counts[f"{rule}/top"]) for rule in RULES}
        own = {rule: (edges.clamp(min=math.ulp(0.0)).log(), counts[f"{rule}/own"]) for rule in RULES}
        return Confidence(top, own, strangest, roughness=RoughnessRange(1 / rough[1], rough[0]) if rough else None)

    @property
    def _header(self) -> dict[str, Any]:
        return {"table": self.design.recipe.name, "folds": len(self.folds)}

    @property
    def _tensors(self) -> Tensors:
        return {**design_tensors(self.design), **_points("", self.folds)}


@dataclass(frozen=True, eq=False)
class RemoteCorrections:
    """The sites' corrections of the probe. Two messages: scores of all strengths, then the fit that each site keeps."""

    cohort: RemoteCohort
    design: DesignMatrix
    probes: Sequence[Tensor]

    def scores(self, ridge: float, starts: Sequence[Tensor | None]) -> tuple[list[Tensor], list[ClientSums]]:
        number = STRENGTHS.index(ridge)
        return [], [self._all_scores[f"{number}.{fold}"] for fold in range(len(starts))]

    @cached_property
    def _all_scores(self) -> dict[str, ClientSums]:
        header = {"table": self.design.recipe.name, "folds": len(self.probes), "ridges": list(STRENGTHS)}
        tensors = {**design_tensors(self.design), **_points("", self.probes)}
        return by_part(self.cohort.total({"step": "corrections", **header}, tensors))

    def keep(self, chosen: Chosen, probe: Tensor, rounds: int) -> dict[str, Tensor]:
        header = {"step": "keep", "table": self.design.recipe.name, "ridge": chosen.ridge}
        self.cohort.everybody(header, {**design_tensors(self.design), "point/probe": probe})
        return {}


@dataclass(frozen=True, eq=False)
class RemoteClasses:
    """Held-out class probabilities of the probe and the joint model, which stay on the sites.

    The mixture of all corrected heads is missing: it needs every head's answer about other sites' held-out samples,
    so the features of single samples would have to travel.
    """

    cohort: RemoteCohort
    heads: HeldOutHeads

    @property
    def stacks(self) -> dict[str, list[str]]:
        return {"stacked": ["global_probe", *(["joint"] if self.heads.joints is not None else [])]}

    def curves(self, models: Sequence[str]) -> Callable[[Tensor], ClientSums]:
        design = self.heads.design
        header = {
            "step": "curves",
            "table": design.recipe.name,
            "folds": len(self.heads.probes),
            "joint": "joint" in models,
        }
        tensors = {**design_tensors(design), **_points("probe.", self.heads.probes)}
        tensors |= _points("joint.", self.heads.joints or ())
        return lambda weights: self.cohort.total(header, {**tensors, "weights": weights})


def design_tensors(design: DesignMatrix) -> Tensors:
    """A design matrix as sites need it to standardise their features."""
    name, scaler = design.recipe.name, design.scaler
    return {f"table/{name}/mean": scaler.mean, f"table/{name}/scale": scaler.scale}


def _by_client(total: Mapping[str, Tensor], clients: int) -> list[ClientSums]:
    """Every client's counts and sums, from a sum over sites in which each has its own row.

    Of the Gram matrices there is the sum only. Moments add up, so it may count as the first client's.
    """
    each: list[ClientSums] = []
    for number in range(clients):
        own = {name: value[number] for name, value in total.items() if not name.endswith("/scatter")}
        grams = {name: value if number == 0 else value * 0 for name, value in total.items() if name not in own}
        each.append({**own, **grams})
    return each


def _moments_of(answer: Mapping[str, Tensor], parts: int) -> list[Moments]:
    """One site's moments by part."""
    alone = {"shape": torch.tensor([1, 1]), "cells": torch.tensor([[0, 0]])}
    tensors = by_part(answer)
    moments = []
    for part in range(parts):
        sums = torch.cat(list(tensors[f"{part}/sum"].values()))[None]
        counts, scatter = answer[f"{part}/count"][None], answer[f"{part}/scatter"]
        known = {"counts": counts, "client_sums": sums, "class_sums": sums, "scatter": scatter}
        moments.append(Moments.load({**alone, **known}))
    return moments


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """The tensors by what comes before the last slash of their name, each by the rest of it."""
    parts: dict[str, Tensors] = {}
    for name, value in tensors.items():
        key, _, rest = name.rpartition("/")
        parts.setdefault(key, {})[rest] = value
    return parts


def _of(seen: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """The values of the samples that are seen, of all sites."""
    return torch.cat([value[mask] for mask, value in zip(seen, values, strict=True)])


def _points(prefix: str, points: Sequence[Tensor]) -> Tensors:
    return {f"point/{prefix}{fold}": point for fold, point in enumerate(points)}


def _question(
    step: str, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Tensors]:
    fits = {key: [request.design.recipe.name, request.target, request.fold] for key, request in requests.items()}
    tensors = {f"point/{key}": points[key] for key in requests}
    for request in requests.values():
        tensors |= design_tensors(request.design)
    return {"step": step, "fits": fits}, tensors
