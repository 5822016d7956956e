"""The posterior rule: a client is likely beforehand in proportion to its training samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddrm.rules.rule import Evidence, Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Posterior(Rule):
    """Large clients likelier beforehand

    The best client is the one that the query most probably comes from. Routers are fitted to these odds.
    """

    name: ClassVar[str] = "posterior"

    def scores(self, evidence: Evidence) -> Tensor:
        return evidence.logits
