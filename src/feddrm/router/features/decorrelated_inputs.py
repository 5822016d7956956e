"""How unlike all training data a row is: the mean square of its features, or of a table's decorrelated columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.router.features.base import INPUT
from feddrm.router.features.design_matrix import DesignMatrix

MOST_INPUTS = 256  # the matrix has their square
SAMPLES_EACH = 10  # training samples for every input; fewer do not give correlations
SHRINKAGE = 0.01  # of the inputs' variance
CONSTANT = 1e-6  # of it: an input that varies less varies by rounding alone


@dataclass(frozen=True, eq=False)
class DecorrelatedInputs:
    """The inputs of a table among standardised features, and the symmetric matrix that decorrelates them.

    Each result belongs to the input that it resembles most, and their squares add up to the squared Mahalanobis
    distance from the pooled mean, divided by the number of inputs. So every column has a share that is not negative.
    """

    places: Tensor  # [k]
    matrix: Tensor  # [k, k]

    @staticmethod
    def known(shape: tuple[int, ...], samples: int) -> bool:
        """Whether so many training samples of this shape give a matrix: those of a table that is not too wide."""
        return len(shape) == 1 and shape[0] <= MOST_INPUTS and samples >= SAMPLES_EACH * shape[0]

    @classmethod
    def of(cls, design: DesignMatrix, widths: Mapping[str, Mapping[str, int]]) -> DecorrelatedInputs | None:
        """From the pooled second moments of a design; None where the parts of its features, with these widths, have no
        part that is the input, or the input is constant."""
        if design.whitening is None or design.whitening.vectors is None:
            return None
        parts = [(part, width) for feature in widths.values() for part, width in feature.items()]
        first = next((number for number, (part, _) in enumerate(parts) if part == INPUT), None)
        if first is None:
            return None
        start = sum(width for _, width in parts[:first])
        values, vectors = design.whitening.values, design.whitening.vectors[start : start + parts[first][1]]
        moments = (vectors * values) @ vectors.T
        variance = moments.diagonal()
        if not (unit := float(variance.max())) > 0:
            return None
        # An input that never varied counts as any other: it has no correlation that a row could break.
        moments = moments + torch.diag(torch.where(variance < CONSTANT * unit, unit, 0.0))
        spread, axes = torch.linalg.eigh(moments)
        inverse_roots = (len(spread) * (spread.clamp(min=0) + SHRINKAGE * unit)).rsqrt()
        places = torch.arange(start, start + len(spread), device=spread.device)
        return cls(places, (axes * inverse_roots) @ axes.T)

    def squares(self, x: Tensor) -> Tensor:
        """The squares [N, d] that add up to the strangeness of features [N, d]; zeros for other features."""
        squares = x * 0  # no new zeros: what is not a number stays so
        squares[:, self.places] = (x[:, self.places] @ self.matrix.to(x)).square_()
        return squares

    def scaled(self, scale: Tensor) -> DecorrelatedInputs:
        """The same for features that are not divided by their ``scale`` yet."""
        return DecorrelatedInputs(self.places, self.matrix / scale[self.places][:, None])

    def to(self, like: Tensor) -> DecorrelatedInputs:
        """The same in the type and on the device of a tensor."""
        return DecorrelatedInputs(self.places.to(like.device), self.matrix.to(like))


def strangeness(x: Tensor, inputs: DecorrelatedInputs | None) -> Tensor:
    """How unlike all training data standardised features [N, d] are."""
    return x.square().mean(1) if inputs is None else inputs.squares(x).sum(1)
