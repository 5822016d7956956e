"""The interface of tasks: what a label means, and how a head's outputs are compared with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.utils._pytree import register_constant

from feddrm.errors import SettingError
from feddrm.registry import Named


@dataclass(frozen=True)
class Task(Named, ABC):
    """What is learned. Labels are int64 numbers, one per sample, so data, batches and engines carry them alike."""

    classifies: ClassVar[bool]  # whether a label is one of the classes

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_constant(cls)  # it holds no tensor, so a network's outputs pass through torch.vmap with their task

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of every sample [N], for logits [N, K]. A CUDA graph can record it."""

    @abstractmethod
    def answers(self, logits: Tensor) -> Tensor:
        """The probabilities [..., K] that a model answers with."""

    @abstractmethod
    def class_of(self, labels: Tensor) -> Tensor:
        """The number of the class that a sample is counted under."""

    @abstractmethod
    def check(self, where: str, labels: Tensor, classes: Sequence[str]) -> None:
        """Raise an error for labels that cannot be."""

    def as_dict(self) -> dict[str, Any]:
        """The name and the settings, from which :meth:`of` makes it again."""
        return {"name": self.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Task:
        """The inverse of :meth:`as_dict`."""
        settings = dict(values)
        return cls.make(settings.pop("name"), **settings)


def require_classes(task: Task, what: str, remedy: str) -> None:
    """Refuse what needs classes, for another task."""
    if not task.classifies:
        raise SettingError(f"{what} needs classes, and the task of these data is {task.name}: {remedy}")
