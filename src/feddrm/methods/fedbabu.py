"""FedBABU (Oh et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrm.methods.losses import classify
from feddrm.methods.method import Phase, Stage, TunedMethod, body
from feddrm.models import is_head


@dataclass(frozen=True)
class FedBABU(TunedMethod):
    """Federated training of the body under one random frozen head, then head-only fine-tuning

    By default a quarter of the rounds tune, as in the paper's configuration (200 of 800; its text says
    100). The original fine-tunes body and head once at the end.
    """

    name: ClassVar[str] = "fedbabu"
    one_in: ClassVar[int] = 4

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return (Phase(stage.steps, classify, train=is_head if stage.tuning else body),)

    def shares(self, leaf: str, stage: Stage) -> bool:
        return not stage.tuning and not is_head(leaf)

    def keeps(self, leaf: str, stage: Stage) -> bool:
        return is_head(leaf)
