"""The base class of routing rules, found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feddrm.registry import Named

if TYPE_CHECKING:  # the command line lists the rules and must not wait for torch
    from torch import Tensor


@dataclass(frozen=True)
class Rule(Named, ABC):
    """How a router's scores over clients become weights.

    ``logits`` [N, m] are log posterior odds of the clients, up to a constant per query. ``log_prior`` [m] holds the
    logarithms of the clients' shares of the training samples.
    """

    @abstractmethod
    def scores(self, logits: Tensor, log_prior: Tensor) -> Tensor:
        """Log-weights [N, m] up to a constant per query: enough to choose the best client."""

    def log_weights(self, logits: Tensor, log_prior: Tensor) -> Tensor:
        """Log-weights [N, m] whose exponentials sum to one for every query."""
        return self.scores(logits, log_prior).log_softmax(-1)
