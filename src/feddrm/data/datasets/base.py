"""Datasets: frozen settings that can be loaded into a federation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.data.federation import Federation
from feddrm.data.partition import PARTITIONS, Indices, partition
from feddrm.data.shift import SHIFTS
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import Named, check_choice


@dataclass(frozen=True)
class Dataset(Named, ABC):
    """The settings of a dataset. The constructor only stores them; ``check`` checks them, ``load`` reads the data.

    Example:
        >>> feddrm.Dataset.make("digits", clients=4)
        Digits(seed=2025, clients=4, partition='dirichlet', alpha=0.3, shards=5, shift='high')
    """

    seed: int = 2025

    def check(self) -> None:
        """Raise an error if a setting is impossible, before any file is read."""
        if self.seed < 0 or self.seed >= 2**32:
            raise SettingError(f"seed {self.seed} is out of range: give one from 0 to {2**32 - 1}")

    @abstractmethod
    def load(self) -> Federation:
        """Read the data, divide them among the clients, and check them."""

    def settings(self) -> dict[str, Any]:
        """The settings that load the same federation again."""
        return asdict(self)


@dataclass(frozen=True)
class FileDataset(Dataset, ABC):
    """A dataset in files, which are searched for, or downloaded if ``download`` is set."""

    data_dir: str | None = None
    download: bool = False

    def settings(self) -> dict[str, Any]:
        """The settings without ``data_dir`` and ``download``: they change where the files are, not what they hold."""
        settings = super().settings()
        return {key: value for key, value in settings.items() if key not in {"data_dir", "download"}}


@dataclass(frozen=True)
class DividedDataset(Dataset, ABC):
    """A dataset of one pool of samples, divided among the clients by label, with a shift for each client."""

    clients: int = 8
    partition: str = "dirichlet"
    alpha: float = 0.3
    shards: int = 5
    shift: str = "high"

    def check(self) -> None:
        """Raise an error if the division or the shift is impossible."""
        super().check()
        if self.clients < 2:
            raise SettingError(f"clients={self.clients}: a federation needs at least two")
        check_choice("partition", self.partition, PARTITIONS)
        if not 0 < self.alpha < float("inf"):
            raise SettingError(f"alpha={self.alpha}: the Dirichlet parameter must be positive (the paper: 0.3)")
        if self.shards < 1:
            raise SettingError(f"shards={self.shards}: every client needs at least one")
        check_choice("shift", self.shift, SHIFTS)

    def settings(self) -> dict[str, Any]:
        """The settings without those that the partition does not use."""
        settings = super().settings()
        unused = {"dirichlet": {"shards"}, "shards": {"alpha"}, "iid": {"alpha", "shards"}}[self.partition]
        return {key: value for key, value in settings.items() if key not in unused}

    def divide(self, labels: NDArray[np.int64]) -> list[tuple[Indices, Indices]]:
        """The numbers of every client's training and test samples, divided by these labels."""
        return partition(
            labels, clients=self.clients, kind=self.partition, alpha=self.alpha, shards=self.shards, seed=self.seed
        )


def load(name: str, /, **settings: Any) -> Federation:
    """Load a dataset by name, with its settings.

    Example:
        >>> feddrm.load("digits", clients=3, partition="dirichlet", alpha=0.3, seed=0).names
        ('flatbed', 'negative', 'fax')
    """
    dataset = Dataset.make(name, **settings)
    dataset.check()
    federation = dataset.load()
    if not isinstance(federation, Federation):
        raise FeddrmError(f"load() of dataset '{name}' gives {type(federation).__name__}: return a Federation")
    if federation.name == dataset.name:
        return federation
    # Files have names of their own. A run finds the samples again by the dataset that read them.
    return replace(federation, dataset={"name": dataset.name, **dataset.settings()})
