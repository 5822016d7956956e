"""The density rule: all clients are equally likely beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddrm.rules.rule import Evidence, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Density(Rule):
    """All clients equally likely beforehand

    The best client is the one under whose distribution the query is densest.
    """

    name: ClassVar[str] = "density"

    def scores(self, evidence: Evidence) -> Tensor:
        return evidence.logits - evidence.log_prior
