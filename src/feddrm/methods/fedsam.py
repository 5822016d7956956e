"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022) with fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from feddrm.errors import SettingError
from feddrm.methods.losses import classify
from feddrm.methods.method import Phase, Stage, TunedMethod


@dataclass(frozen=True)
class FedSAMFT(TunedMethod):
    """FedAvg with sharpness-aware local steps, then plain fine-tuning

    As in the paper's experiments, the perturbed gradient goes into momentum SGD; the original has no
    local momentum.
    """

    name: ClassVar[str] = "fedsamft"
    rho: float = 0.05

    def check(self, rounds: int) -> None:
        super().check(rounds)
        if not 0 < self.rho < math.inf:
            raise SettingError(f"rho={self.rho}: the radius must be positive (the paper: 0.05); for none use fedavgft")

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return (Phase(stage.steps, classify, sam_radius=0.0 if stage.tuning else self.rho),)
