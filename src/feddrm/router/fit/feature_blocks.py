"""Choosing features and ridge from moments alone: every recipe is a block of one Gram matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from feddrm.moments import SQUARED_RIDGES, Fold, Heads, Moments, MomentTarget, RidgeChoice, choose_ridges
from feddrm.router.features.base import Recipe
from feddrm.router.features.design_matrix import stretch_of
from feddrm.router.fit.selection import AROUND, FINER
from feddrm.router.solver.problem import Scaler

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


class BlockChooser:
    """Tries recipes on pooled moments: of the folds that are held out in turn, and of the rest, if there is any."""

    def __init__(self, parts: Sequence[Moments], used: int, widths: Mapping[str, int], ridge: float | None) -> None:
        self.parts, self.widths, self.ridge = parts, widths, ridge
        self.folds = [(reduce(add, [*parts[:fold], *parts[fold + 1 :]]), parts[fold]) for fold in range(used)]
        places = torch.split(torch.arange(parts[0].width, device=parts[0].scatter.device), list(widths.values()))
        self.places = dict(zip(widths, places, strict=True))

    @cached_property
    def total(self) -> Moments:
        """The moments of all samples."""
        return reduce(add, self.parts)

    def try_ridges(
        self, recipe: Recipe, ridges: Sequence[float], alone: Mapping[str, float] | None = None
    ) -> dict[MomentTarget, FeatureBlock]:
        """The best ridge on a recipe for either target; ``alone`` are the ridges that suit each feature alone."""
        index = torch.cat([self.places[feature.name] for feature in recipe.features])
        scale = self.total.scale[index]
        if alone is not None:
            scale = scale * stretch_of(recipe, self.widths, alone).to(scale)
        scaler = Scaler(self.total.mean[index], scale)
        block = FeatureBlock(recipe, index, scaler)
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
            for target, blocks in tried.items():
                if len(recipe.features) > 1:
                    alone = {feature.name: blocks[feature.name].choice.ridge for feature in recipe.features}
                    ridges = [max(alone.values()) * factor for factor in AROUND]
                    blocks[recipe.name] = self.try_ridges(recipe, ridges, None if self.ridge is not None else alone)[
                        target
                    ]
                elif recipe.name not in blocks:
                    found = self.try_ridges(recipe, SQUARED_RIDGES)
                    tried["client"][recipe.name], tried["class"][recipe.name] = found["client"], found["class"]
        return tried, {
            target: self.refined(target, min(blocks.values(), key=_loss)) for target, blocks in tried.items()
        }

    def refined(self, target: MomentTarget, block: FeatureBlock) -> FeatureBlock:
        """The block with its ridge chosen more finely."""
        if self.ridge is not None:
            return block
        ridges = [factor * block.choice.ridge for factor in FINER]
        return replace(block, choice=choose_ridges(block.of_folds(self.folds), ridges, block.solved)[target])


def _loss(block: FeatureBlock) -> float:
    return block.choice.loss
