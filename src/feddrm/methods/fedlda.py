"""Gaussian heads on frozen features: FedCGS (Guan et al., AAAI 2025), GH-OFL (Turazza et al., ICLR 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddrm.methods.closed_form import ClosedFormMethod
from feddrm.moments import Fold, prior_corrections


@dataclass(frozen=True)
class FedLDA(ClosedFormMethod):
    """Linear discriminants on frozen features from sums that clients send once (FedCGS, GH-OFL); by feddrm fit

    Classes, and clients, are Gaussians with one covariance. The ridge on it is the one that suits ridge regression of
    the same indicators: both span the same subspace (Hastie, Buja and Tibshirani, 1995).
    """

    name: ClassVar[str] = "fedlda"
    estimator: ClassVar[str] = "lda"

    def corrections(
        self, folds: Sequence[Fold], heads: Sequence[Tensor], head: Tensor, pooled: Tensor, temperature: float
    ) -> Sequence[Sequence[Tensor]]:
        return (prior_corrections(folds, head, pooled),)
