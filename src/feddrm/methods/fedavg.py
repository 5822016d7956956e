"""FedAvg (McMahan et al., AISTATS 2017), with and without fine-tuning, and training without a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrm.methods.losses import classify
from feddrm.methods.method import Method, Phase, Stage, TunedMethod


@dataclass(frozen=True)
class FedAvg(Method):
    """Plain federated averaging: one global model for everybody"""

    name: ClassVar[str] = "fedavg"

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return (Phase(stage.steps, classify),)


@dataclass(frozen=True)
class FedAvgFT(FedAvg, TunedMethod):
    """FedAvg, then every client fine-tunes the whole model on its own data"""

    name: ClassVar[str] = "fedavgft"


@dataclass(frozen=True)
class Local(FedAvg):
    """No federation: every client trains alone, and nothing travels"""

    name: ClassVar[str] = "local"

    def shares(self, leaf: str, stage: Stage) -> bool:
        return False
