"""The base class of routing rules, found by name, and the evidence that they look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddrm.registry import Named

if TYPE_CHECKING:  # the command line lists the rules and must not wait for torch
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Evidence:
    """What rules look at, for N queries and m clients. Most rules need the first two fields only.

    ``logits`` are log posterior odds of the clients, up to a constant per query. ``log_prior`` holds the logarithms of
    the clients' shares of the training samples.
    """

    logits: Tensor  # [N, m]
    log_prior: Tensor  # [m]
    right: Tensor | None = None  # [N, m] probability that each client's answer is right
    answers: Tensor | None = None  # [m, N, K] log class probabilities by every client
    features: Tensor | None = None  # [N, d] standardised features
    means: Tensor | None = None  # [m, d] their means over every client's training samples


@dataclass(frozen=True)
class Rule(Named, ABC):
    """How evidence about N queries becomes weights over clients. ``needs`` are the optional fields that it requires."""

    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def scores(self, evidence: Evidence) -> Tensor:
        """Log-weights [N, m] up to a constant per query: enough to choose the best client."""

    def log_weights(self, evidence: Evidence) -> Tensor:
        """Log-weights [N, m] whose exponentials sum to one for every query."""
        return self.scores(evidence).log_softmax(-1)
