"""FedProx (Li et al., MLSys 2020) with fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddrm.data import Batch
from feddrm.errors import SettingError
from feddrm.methods.losses import classify, distance
from feddrm.methods.method import Forward, Phase, Slots, Stage, TunedMethod


@dataclass(frozen=True)
class FedProxFT(TunedMethod):
    """FedAvg with a proximal pull to the received model, then fine-tuning without it"""

    name: ClassVar[str] = "fedproxft"
    mu: float = 0.01

    def check(self, rounds: int) -> None:
        super().check(rounds)
        if not 0 <= self.mu < math.inf:
            raise SettingError(f"mu={self.mu}: the proximal weight must be a number and not negative (the paper: 0.01)")

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return (Phase(stage.steps, classify if stage.tuning else self._near),)

    def _near(self, net: Forward, slots: Slots, batch: Batch) -> Tensor:
        return classify(net, slots, batch) + self.mu * distance(slots["model"], slots["shared"])
