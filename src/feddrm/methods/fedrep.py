"""FedRep (Collins et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feddrm.methods.losses import classify
from feddrm.methods.method import Method, Phase, Stage, body, split_steps
from feddrm.models import is_head


@dataclass(frozen=True)
class FedRep(Method):
    """Private heads on a shared representation: half of the steps on the head, then half on the body"""

    name: ClassVar[str] = "fedrep"

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        first, second = split_steps(stage.steps)
        return Phase(first, classify, train=is_head), Phase(second, classify, train=body)

    def shares(self, leaf: str, stage: Stage) -> bool:
        return not is_head(leaf)
