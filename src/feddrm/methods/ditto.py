"""Ditto (Li et al., ICML 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddrm.data import Batch
from feddrm.errors import SettingError
from feddrm.methods.losses import classify, distance
from feddrm.methods.method import Forward, Method, Phase, Slots, Stage, Tensors, split_steps


@dataclass(frozen=True)
class Ditto(Method):
    """A global model, and a personal one that is pulled towards the received model

    Half of the local steps go to each, as in the paper's experiments.
    """

    name: ClassVar[str] = "ditto"
    lam: float = 1.0

    def check(self, rounds: int) -> None:
        super().check(rounds)
        if not 0 <= self.lam < math.inf:
            raise SettingError(f"lam={self.lam}: the pull must be a number and not negative (the paper: 1)")

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        first, second = split_steps(stage.steps)
        return Phase(first, classify), Phase(second, self._personal, slot="personal", logged=False)

    def start(self, leaves: Tensors) -> tuple[Tensors, Slots]:
        return leaves, {"personal": leaves}

    def serve(self, received: Tensors, private: Slots) -> Tensors:
        return private["personal"]

    def _personal(self, net: Forward, slots: Slots, batch: Batch) -> Tensor:
        own = slots["personal"]
        return classify(net, {"model": own}, batch) + self.lam * distance(own, slots["shared"])
