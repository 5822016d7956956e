"""Closed-form ridge regression on frozen features: Fed3R (Fani et al., ICML 2024), AFL (He et al., CVPR 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddrm.methods.closed_form import ClosedFormMethod
from feddrm.moments import Fold, own_corrections, prior_corrections


@dataclass(frozen=True)
class Fed3R(ClosedFormMethod):
    """Ridge regression on frozen features from sums that clients send once (Fed3R, AFL); by feddrm fit

    Both publications give the ridge regression of the pooled samples: Fed3R adds Gram matrices, AFL adds the clients'
    solutions so that the result is the same. Here the ridge is chosen on folds. A client's change of the head is a
    ridge regression of what the head leaves, or its own class frequencies.
    """

    name: ClassVar[str] = "fed3r"
    estimator: ClassVar[str] = "ridge"

    def corrections(
        self, folds: Sequence[Fold], heads: Sequence[Tensor], head: Tensor, pooled: Tensor, temperature: float
    ) -> Sequence[Sequence[Tensor]]:
        # Too few samples for weights of their own still tell which classes are frequent.
        priors = [temperature * prior for prior in prior_corrections(folds, head, pooled)]
        return own_corrections(folds, heads, head), priors
