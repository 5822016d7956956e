"""Rival rules: how others choose a client. Every evaluation measures them beside the router's own rules.

None of them routes queries here. The first two must ask all clients before they choose one; the other two compare the
query's features with every client's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddrm.rules.rule import Evidence, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MostConfident(Rule):
    """The client that is surest of its label"""

    name: ClassVar[str] = "confident"
    needs: ClassVar[tuple[str, ...]] = ("answers",)

    def scores(self, evidence: Evidence) -> Tensor:
        assert evidence.answers is not None
        return evidence.answers.amax(-1).T


@dataclass(frozen=True)
class LeastEntropy(Rule):
    """The client whose label probabilities have the least entropy"""

    name: ClassVar[str] = "entropy"
    needs: ClassVar[tuple[str, ...]] = ("answers",)

    def scores(self, evidence: Evidence) -> Tensor:
        assert evidence.answers is not None
        return (evidence.answers.exp() * evidence.answers).sum(-1).T


@dataclass(frozen=True)
class NearestMean(Rule):
    """The client whose mean features are nearest"""

    name: ClassVar[str] = "nearest"
    needs: ClassVar[tuple[str, ...]] = ("features", "means")

    def scores(self, evidence: Evidence) -> Tensor:
        assert evidence.features is not None
        assert evidence.means is not None
        # Minus half the squared distance, but for the query's own square, which is the same for all clients.
        return evidence.features @ evidence.means.T - evidence.means.square().sum(1) / 2


@dataclass(frozen=True)
class LargestCosine(Rule):
    """The client whose mean features have the largest cosine with the query's"""

    name: ClassVar[str] = "cosine"
    needs: ClassVar[tuple[str, ...]] = ("features", "means")

    def scores(self, evidence: Evidence) -> Tensor:
        assert evidence.features is not None
        assert evidence.means is not None
        means = evidence.means / evidence.means.norm(dim=1, keepdim=True).clamp(min=1e-12)
        cosine: Tensor = evidence.features @ means.T / evidence.features.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return cosine
