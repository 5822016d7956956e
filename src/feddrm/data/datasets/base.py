"""A dataset is a frozen set of settings that can be loaded into a Federation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from feddrm.data.federation import Federation
from feddrm.data.partition import PARTITIONS
from feddrm.data.shift import SHIFTS
from feddrm.errors import SettingError
from feddrm.registry import Named, nearest


@dataclass(frozen=True)
class Dataset(Named, ABC):
    """Constructors store settings and do nothing; ``check`` refuses what cannot be, ``load`` reads."""

    seed: int = 2025

    def check(self) -> None:
        """Refuse impossible settings before anything is read."""
        if self.seed < 0 or self.seed >= 2**32:
            raise SettingError(f"seed {self.seed} is out of range: give one from 0 to {2**32 - 1}")

    @abstractmethod
    def load(self) -> Federation:
        """Read, divide and check the data."""

    def settings(self) -> dict[str, Any]:
        """What the federation was made with: enough to make it again."""
        return asdict(self)


@dataclass(frozen=True)
class FileDataset(Dataset, ABC):
    """A dataset whose files must be found, or downloaded where allowed."""

    data_dir: str | None = None
    download: bool = False

    def settings(self) -> dict[str, Any]:
        own = super().settings()
        return {key: own[key] for key in own if key not in {"data_dir", "download"}}


@dataclass(frozen=True)
class DividedDataset(Dataset, ABC):
    """One pool of samples, divided among clients by label and shifted per client."""

    clients: int = 8
    partition: str = "dirichlet"
    alpha: float = 0.3
    shards: int = 5
    shift: str = "high"

    def check(self) -> None:
        super().check()
        if self.clients < 2:
            raise SettingError(f"clients={self.clients}: a federation needs at least two")
        if self.partition not in PARTITIONS:
            known = ", ".join(PARTITIONS)
            raise SettingError(f"unknown partition '{self.partition}'{nearest(self.partition, PARTITIONS)} ({known})")
        if not 0 < self.alpha < float("inf"):
            raise SettingError(f"alpha={self.alpha}: the Dirichlet parameter must be positive (the paper: 0.3)")
        if self.shards < 1:
            raise SettingError(f"shards={self.shards}: every client needs at least one")
        if self.shift not in SHIFTS:
            raise SettingError(f"unknown shift '{self.shift}'{nearest(self.shift, SHIFTS)} ({', '.join(SHIFTS)})")

    def settings(self) -> dict[str, Any]:
        own = super().settings()
        unused = {"dirichlet": {"shards"}, "shards": {"alpha"}, "iid": {"alpha", "shards"}}[self.partition]
        return {key: own[key] for key in own if key not in unused}


def load(name: str, /, **settings: Any) -> Federation:
    """Load a dataset by name: ``load("digits", clients=8, partition="dirichlet", alpha=0.3, seed=0)``."""
    dataset = Dataset.make(name, **settings)
    dataset.check()
    return dataset.load()
