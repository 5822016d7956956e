"""The settings of a router's fit, for one process and for a deployed federation alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from feddrm.data import generator_for
from feddrm.errors import SettingError
from feddrm.router.features.base import Recipe
from feddrm.tasks import Task, require_classes

FOLD = int.from_bytes(b"fold", "big")
MANY = 100  # clients; a larger federation compares recipes and ridges on so many of them
SMALL = 10_000  # samples; a smaller federation holds out every part in turn
GPU_CROPS = 8
PART_BYTES = {"cpu": 2**29, "cuda": 2**33}  # what a part of a fit may take that grows with clients times something


@dataclass(frozen=True)
class Holdout:
    """Each client's samples fall into ``parts`` at random; the first ``used`` of them are held out in turn.

    Small federations hold out all parts in turn (cross-validation). For large ones one part of sixteen is enough.
    """

    parts: int
    used: int

    @classmethod
    def suggested(cls, samples: int) -> Holdout:
        return cls(5, 5) if samples < SMALL else cls(16, 1)

    def at_most(self, folds: int) -> Holdout:
        """The same parts, of which no more than ``folds`` are held out."""
        return Holdout(self.parts, min(folds, self.used))

    def check(self) -> None:
        """Raise an error where nothing or everything is held out."""
        if self.parts < 2 or not 1 <= self.used <= self.parts:
            raise SettingError(f"holdout of {self.used} of {self.parts} parts: give two parts or more, and use some")

    def leaves_samples(self, sizes: Sequence[int]) -> bool:
        """Whether every fold leaves samples to fit: the first one holds out the only sample of a client with one."""
        return any(self.remaining(size, 0) for size in sizes)

    def draw(
        self, client: int, size: int, seed: int, copies: int = 1, subject: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The part of every sample of one client. The ``copies`` (crops) of a sample share its part.

        So do the samples of one ``subject``, where the client has several; the parts then differ in size.
        """
        self.check()
        own, generator = torch.arange(size), generator_for(seed, FOLD, client)
        if subject is not None and int(subject.min()) < int(subject.max()):  # of one alone, nothing would be left
            own = torch.unique(subject, return_inverse=True)[1]
        order = torch.randperm(len(torch.unique(own)), generator=generator)
        return (order % self.parts)[own].repeat(copies)

    def masks(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Which samples each fold holds out, then which none does, if there are any; ``part`` is from :meth:`draw`."""
        folds = [part == fold for fold in range(self.used)]
        return folds if self.used == self.parts else [*folds, part >= self.used]

    def remaining(self, size: int, fold: int | None) -> int:
        """How many of ``size`` samples a fit sees that holds out ``fold``."""
        return size if fold is None else size - len(range(fold, size, self.parts))


@dataclass(frozen=True)
class RouterSettings:
    """How to fit a router.

    ``features`` is a recipe; None tries several on held-out samples. ``crops`` random crops of every training
    sample are used where the data has crops; None means eight on a GPU and one on a CPU, where the passes through
    the trunk would take most of the time. ``rounds`` bounds the fits that are kept; None takes the router to its
    optimum and gives each fit of a head 60. ``path_rounds`` bounds the fits that only compare ridge strengths
    (None: as many as each comparison needs). ``heads`` fits the exact class heads, too; ``joint`` their joint model
    (None: where it is affordable); ``competence``, with heads, how probable a right answer of each client is. Several
    ``views`` take the place of the crops: the features of a training sample are then means over its views, as those
    of a query will be. ``few_messages`` fits the router as a deployed federation does: from moments that clients
    send once, then with four or five rounds at a time, side by side. ``part_bytes`` bounds each part that grows
    with clients times samples or classes (None: 512 MiB; on a GPU 8 GiB). Joint model, competence and answers of all
    clients are left out where they would take more, and a line says so. Corrections and competence are fitted for fewer
    clients at a time, and second derivatives are taken of fewer samples.
    """

    features: str | None = None
    holdout: Holdout | None = None
    crops: int | None = None
    rounds: int | None = None
    path_rounds: int | None = None
    tolerance: float = 1e-6
    heads: bool = True
    joint: bool | None = None
    competence: bool = True
    seed: int = 0
    views: int = 1
    few_messages: bool = False
    part_bytes: int | None = None

    def check(self) -> None:
        """Raise an error for settings that cannot be fitted."""
        for name in ("crops", "rounds", "path_rounds", "part_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name}={value}: give at least 1")
        if self.crops is not None and self.views > 1:
            raise SettingError(
                f"crops={self.crops}, views={self.views}: views take the place of crops: give one of them"
            )
        if not 0 <= self.seed < 2**32:
            raise SettingError(f"seed={self.seed}: give one from 0 to {2**32 - 1}")
        if not self.tolerance >= 0:
            raise SettingError(f"tolerance={self.tolerance}: give a number from zero up")
        if self.holdout is not None:
            self.holdout.check()
        if self.features is not None:
            Recipe.parse(self.features)

    def for_task(self, task: Task) -> RouterSettings:
        """The settings without class heads, where there are no classes."""
        if self.joint:
            require_classes(task, "joint=True", "leave it out")
        return self if task.classifies else replace(self, heads=False)

    def crops_on(self, device: torch.device) -> int:
        """How many crops are made of every training sample of data that has crops."""
        return self.crops if self.crops is not None else GPU_CROPS if device.type == "cuda" else 1

    def too_large(self, part: str, size: int, device: torch.device) -> str | None:
        """The line that says that a part of so many bytes is left out; None if it is not."""
        most = self.part_bytes or PART_BYTES[device.type]
        if size <= most:
            return None
        needed, allowed = (f"{value / 2**20:,.0f} MiB" for value in (size, most))
        return f"{part}: left out, it takes {needed} and part_bytes allows {allowed}"
