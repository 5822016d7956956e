"""FedDRM (Wang et al., "Beyond Aggregation", ICLR 2026): private class heads, a shared client head; fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feddrm.data import Batch
from feddrm.errors import SettingError
from feddrm.methods.losses import classify, cross_entropy, task_loss
from feddrm.methods.method import Forward, Method, Phase, Slots, Stage, TunedMethod
from feddrm.models import is_client_branch, is_head


@dataclass(frozen=True)
class FedDRM(Method):
    """Two cross-entropies on one trunk: lam x predict the class + (1 - lam) x identify the client

    Algorithm 1 of the paper. The class head is private. Everything else is averaged, including the
    client head, which is the published router.
    """

    name: ClassVar[str] = "feddrm"
    client_branch: ClassVar[bool] = True
    lam: float = 0.9

    def check(self, rounds: int) -> None:
        super().check(rounds)
        if not 0 < self.lam <= 1:
            raise SettingError(f"lam={self.lam}: the weight of the class loss must lie in (0, 1] (the paper: 0.9)")

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return (Phase(stage.steps, self._loss),)

    def shares(self, leaf: str, stage: Stage) -> bool:
        return not is_head(leaf)

    def _loss(self, net: Forward, slots: Slots, batch: Batch) -> Tensor:
        out = net(slots["model"], batch.x)
        assert out.client_logits is not None
        clients = cross_entropy(out.client_logits, batch.client, batch.mask)
        return self.lam * task_loss(out, batch) + (1 - self.lam) * clients


@dataclass(frozen=True)
class FedDRMFT(FedDRM, TunedMethod):
    """FedDRM, then every client fine-tunes trunk and head on its own data; the client branch stays as it is"""

    name: ClassVar[str] = "feddrmft"

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return (Phase(stage.steps, classify, train=_answers),) if stage.tuning else super().phases(stage)

    def shares(self, leaf: str, stage: Stage) -> bool:
        return not stage.tuning and super().shares(leaf, stage)

    def keeps(self, leaf: str, stage: Stage) -> bool:
        return _answers(leaf) and super().keeps(leaf, stage)


def _answers(leaf: str) -> bool:
    """Whether the answers to queries depend on a leaf: the client branch only routes them, and has no private part."""
    return not is_client_branch(leaf)
