"""Classification: a label is the number of a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.tasks.task import Task


@dataclass(frozen=True)
class Classification(Task):
    """One logit per class, and the cross-entropy."""

    name: ClassVar[str] = "classification"
    classifies: ClassVar[bool] = True

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none")

    def answers(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def class_of(self, labels: Tensor) -> Tensor:
        return labels

    def check(self, where: str, labels: Tensor, classes: Sequence[str]) -> None:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(classes):
            raise FeddrmError(f"{where} has label {low if low < 0 else high}, outside the {len(classes)} classes")


CLASSIFICATION = Classification()
