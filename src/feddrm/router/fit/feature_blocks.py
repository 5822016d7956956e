"""Choosing features and ridge from moments alone: every recipe is a block of one Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from feddrm.moments import SQUARED_RIDGES, Fold, Heads, Moments, MomentTarget, RidgeChoice, choose_ridges
from feddrm.router.features.base import Recipe
from feddrm.router.features.design_matrix import DesignMatrix, stretch_of
from feddrm.router.fit.cohort import FitRequest
from feddrm.router.fit.selection import AROUND, FINER
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import Scaler, Whitening

UNCHOSEN = RidgeChoice(0.0, float("inf"), ())


@dataclass(frozen=True, eq=False)
class FeatureBlock:
    """A recipe's columns of the moments, their standardisation, and the ridge that suits one target."""

    recipe: Recipe
    index: Tensor
    scaler: Scaler
    choice: RidgeChoice = UNCHOSEN
    solved: dict[float, list[Heads]] = field(default_factory=dict)  # ridge heads of every fold, by ridge

    def of(self, moments: Moments) -> Moments:
        """The moments of the standardised block."""
        return moments.columns(self.index).standardised(self.scaler.mean, self.scaler.scale)

    def of_folds(self, folds: Sequence[Fold]) -> list[Fold]:
        """The same for what every fold fits and holds out."""
        return [(self.of(fitted), self.of(held_out)) for fitted, held_out in folds]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        path = [list(step) for step in self.choice.path]
        choice = {"ridge": self.choice.ridge, "held_out_loss": self.choice.loss, "path": path}
        return {"features": len(self.index), **choice}


def feature_block(
    total: Moments, widths: Mapping[str, int], recipe: Recipe, alone: Mapping[str, float] | None = None
) -> FeatureBlock:
    """A recipe's block of the moments of all features; ``alone`` are the ridges that suit each feature alone."""
    places = dict(zip(widths, torch.split(torch.arange(total.width), list(widths.values())), strict=True))
    index = torch.cat([places[feature.name] for feature in recipe.features])
    scale = total.scale[index]
    if alone is not None:
        scale = scale * stretch_of(recipe, widths, alone).double()
    return FeatureBlock(recipe, index, Scaler(total.mean[index], scale))


def site_moments(x: Tensor, masks: Sequence[Tensor]) -> list[Moments]:
    """The moments of one client's features by part; the router's fit needs no classes."""
    blank = torch.zeros(len(x), dtype=torch.int64)
    return [Moments.of(x[mask], blank[mask], 0, 1, 1) for mask in masks]


class MemberMoments:
    """Every client's moments by part, as one message holds them: the folds in turn, then the rest, if there is any.

    Each are those of the client alone.
    """

    def __init__(self, clients: Sequence[Sequence[Moments]], widths: Mapping[str, int]) -> None:
        self.clients, self.widths = clients, widths
        self.total = reduce(add, Moments.joined(clients))

    def design(self, recipe: Recipe, alone: Mapping[str, float] | None = None) -> DesignMatrix:
        """The design matrix of a recipe, without rows."""
        block = feature_block(self.total, self.widths, recipe, alone)
        whitening = Whitening.of({"moments": block.of(self.total).scatter, "count": self.total.counts.sum()})
        return DesignMatrix(recipe, block.scaler, whitening)

    def at_zero(self, request: FitRequest) -> tuple[dict[int, ClientSums], ClientSums]:
        """Loss and gradient of the softmax over clients at zero, by client, and the scores of what is held out."""
        scaler, index = request.design.scaler, feature_block(self.total, self.widths, request.design.recipe).index
        answers, held = {}, torch.zeros(request.problem.outputs, dtype=torch.float64)
        for number, parts in enumerate(self.clients):
            fitted = [part for fold, part in enumerate(parts) if fold != request.fold]
            counts, sums = held.new_zeros(len(held)), held.new_zeros(len(held), len(index))
            counts[number] = torch.stack([part.counts.sum() for part in fitted]).sum()
            sums[number] = torch.stack([part.client_sums[0, index] for part in fitted]).sum(0)
            answers[number] = _at_zero(counts, (sums - counts[:, None] * scaler.mean) / scaler.scale)
            if request.fold is not None:
                held[number] = parts[request.fold].counts.sum()
        # Of equal probabilities the first counts as the answer.
        return answers, {"count": held.sum(), "loss": held.sum() * math.log(len(held)), "correct": held[0]}


def _at_zero(counts: Tensor, sums: Tensor) -> ClientSums:
    """Loss and gradient where all outputs are equally likely, from counts [outputs] and sums [outputs, d]."""
    count, outputs = counts.sum(), len(counts)
    gradient = torch.cat([sums.sum(0) / outputs - sums, (count / outputs - counts)[:, None]], dim=1)
    return {"count": count, "loss": count * math.log(outputs), "gradient": gradient}


class BlockChooser:
    """Tries recipes on pooled moments: of the folds that are held out in turn, and of the rest, if there is any."""

    def __init__(self, parts: Sequence[Moments], used: int, widths: Mapping[str, int], ridge: float | None) -> None:
        self.parts, self.widths, self.ridge = parts, widths, ridge
        self.folds = [(reduce(add, [*parts[:fold], *parts[fold + 1 :]]), parts[fold]) for fold in range(used)]

    @cached_property
    def total(self) -> Moments:
        """The moments of all samples."""
        return reduce(add, self.parts)

    def try_ridges(
        self, recipe: Recipe, ridges: Sequence[float], alone: Mapping[str, float] | None = None
    ) -> dict[MomentTarget, FeatureBlock]:
        """The best ridge on a recipe for either target; ``alone`` are the ridges that suit each feature alone."""
        block = feature_block(self.total, self.widths, recipe, alone)
        given = ridges if self.ridge is None else (self.ridge,)
        choices = choose_ridges(block.of_folds(self.folds), given, block.solved)
        return {target: replace(block, choice=choice) for target, choice in choices.items()}

    def choose(
        self, recipes: Sequence[Recipe]
    ) -> tuple[dict[MomentTarget, dict[str, FeatureBlock]], dict[MomentTarget, FeatureBlock]]:
        """All blocks by target and recipe, and the one with the least held-out squared error, its ridge refined.

        Every feature is tried alone first: the ridge that suits it alone sets its scale among the others.
        """
        tried: dict[MomentTarget, dict[str, FeatureBlock]] = {"client": {}, "class": {}}
        for recipe in sorted(recipes, key=lambda r: len(r.features)):
            if len(recipe.features) == 1:
                for target, block in self.try_ridges(recipe, SQUARED_RIDGES).items():
                    tried[target][recipe.name] = block
                continue
            for target, blocks in tried.items():
                alone = {feature.name: blocks[feature.name].choice.ridge for feature in recipe.features}
                ridges = [max(alone.values()) * factor for factor in AROUND]
                own = self.try_ridges(recipe, ridges, alone if self.ridge is None else None)
                blocks[recipe.name] = own[target]
        best = {target: min(blocks.values(), key=lambda one: one.choice.loss) for target, blocks in tried.items()}
        return tried, {target: self.refined(target, block) for target, block in best.items()}

    def refined(self, target: MomentTarget, block: FeatureBlock) -> FeatureBlock:
        """The block with its ridge chosen more finely."""
        if self.ridge is not None:
            return block
        ridges = [factor * block.choice.ridge for factor in FINER]
        return replace(block, choice=choose_ridges(block.of_folds(self.folds), ridges, block.solved)[target])
