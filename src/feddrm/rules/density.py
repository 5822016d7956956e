"""The density rule: all clients are equally likely beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddrm.rules.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Density(Rule):
    """All clients equally likely beforehand

    The best client is the one under whose distribution the query is densest.
    """

    name: ClassVar[str] = "density"

    def scores(self, logits: Tensor, log_prior: Tensor) -> Tensor:
        return logits - log_prior
