"""The function that the exact fit minimises, and the scaling and whitening of its features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.router.solver.client_statistics import ClientSums


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise mean cross-entropy + ridge / 2 * tr(W' P W) + bias_ridge / 2 * b' P b over W [outputs, features], b.

    ``precision`` P couples the outputs (None: the identity). A ``bias_ridge`` above zero keeps the bias of an
    output finite that no sample has. ``blocks`` of outputs share no sample: each is a fit of its own.
    """

    outputs: int
    features: int
    ridge: float
    bias_ridge: float = 0.0
    precision: Tensor | None = None
    blocks: int = 1

    def check(self) -> None:
        """Raise an error where the problem has no optimum."""
        if self.outputs < 2 or self.features < 1:
            raise SettingError(
                f"a softmax of {self.outputs} outputs on {self.features} features: give at least two and one"
            )
        if not (self.ridge >= 0 and self.bias_ridge >= 0):
            raise SettingError(f"ridge={self.ridge}, bias_ridge={self.bias_ridge}: give numbers from zero up")

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues and eigenvectors of P; None for the identity."""
        if self.precision is None:
            return None
        values, vectors = torch.linalg.eigh(self.precision.double())
        return values.clamp(min=0), vectors

    def penalty(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Its value and gradient at a point [outputs, features + 1], the bias last."""
        coupled = point if self.precision is None else self.precision.to(point) @ point
        gradient = self.ridge * coupled
        gradient[:, -1] = self.bias_ridge * coupled[:, -1]
        return (point * gradient).sum() / 2, gradient


def add(messages: Iterable[ClientSums]) -> ClientSums:
    """The sum over clients, field by field. They are added one by one: all may not fit in memory."""
    total: ClientSums = {}
    for message in messages:
        total = {key: total[key] + value for key, value in message.items()} if total else dict(message)
    if not total:
        raise FeddrmError("no client answered: there is nothing to add")
    return total


@dataclass(frozen=True, eq=False)
class Scaler:
    """Pooled means and standard deviations of the features. A constant feature is only centred."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, sums: ClientSums) -> Self:
        """From the added :func:`client_sums`."""
        mean = sums["sum"] / sums["count"]
        variance = (sums["square"] / sums["count"] - mean.square()).clamp(min=0)
        # Below this the difference of squares is rounding, not variation.
        constant = variance <= 1e-13 * (sums["square"] / sums["count"])
        return cls(mean, torch.where(constant, 1.0, variance.sqrt()))

    def __call__(self, x: Tensor) -> Tensor:
        """Standardised, in the precision of x."""
        return (x - self.mean.to(x)).div_(self.scale.to(x))


@dataclass(frozen=True, eq=False)
class Whitening:
    """Eigenvalues [d] and eigenvectors [d, d] (in columns) of the pooled second moments.

    Without eigenvectors the samples lie on the axes already, and eigenvalues [outputs, d] are those of every output.
    """

    values: Tensor
    vectors: Tensor | None

    @classmethod
    def of(cls, moments: ClientSums) -> Self:
        """From the added :func:`client_moments`."""
        values, vectors = torch.linalg.eigh(moments["moments"] / moments["count"])
        return cls(values.clamp(min=0), vectors)

    def turn(self, point: Tensor, back: bool = False) -> Tensor:
        """A point [outputs, d + 1] on the features as one on the principal axes, or back."""
        if self.vectors is None:
            return point
        return torch.cat([point[:, :-1] @ (self.vectors.T if back else self.vectors), point[:, -1:]], dim=1)
