"""Design matrices: standardised features of training samples, with what the solver needs to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.router.features.base import Recipe
from feddrm.router.solver.problem import Scaler, Whitening


@dataclass(frozen=True, eq=False)
class DesignMatrix:
    """One recipe's standardised features. ``rows`` has every client's samples where they are here.

    A closed form needs no ``whitening``, but the strangeness of a table's rows does.
    """

    recipe: Recipe
    scaler: Scaler
    whitening: Whitening | None
    rows: tuple[Tensor, ...] = ()

    @property
    def width(self) -> int:
        return len(self.scaler.mean)


def stretch_of(recipe: Recipe, widths: Mapping[str, int], ridges: Mapping[str, float]) -> Tensor:
    """The factors on the columns' scales that let one ridge suit all features of a recipe.

    ``ridges`` are the strengths that suit each feature alone. A few hundred colour statistics want a thousandth of
    the ridge of two thousand channel means. One strength for all would silence or overfit one of them.
    """
    most = max(ridges[f.name] for f in recipe.features)
    parts = [torch.full((widths[f.name],), (ridges[f.name] / most) ** 0.5) for f in recipe.features]
    return torch.cat(parts)
