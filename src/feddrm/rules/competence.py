"""The competence rule: the client that is most probably right, less what it costs to ask it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from feddrm.rules.rule import Evidence, Rule

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-6  # of a probability whose odds are taken


@dataclass(frozen=True)
class Competence(Rule):
    """The client whose answer is likeliest right

    Weights are the odds that a client is right. ``costs`` has one number per client, in units of probability: with 0.1
    a client is asked only where it is right 10 points more often than the next one. No costs are zeros.
    """

    name: ClassVar[str] = "competence"
    needs: ClassVar[tuple[str, ...]] = ("right",)
    costs: tuple[float, ...] = ()

    def scores(self, evidence: Evidence) -> Tensor:
        value = evidence.right
        assert value is not None
        if self.costs:
            value = value - value.new_tensor(self.costs)
        # Odds need a positive value. Below that the scores fall linearly, so that the order stays that of the values.
        odds = value.clamp(LEAST, 1 - LEAST).logit()
        return odds + (value - LEAST).clamp(max=0) / LEAST
