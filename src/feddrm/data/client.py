"""One client of a federation: its name, its samples, and its view of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.data.view import View


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and labels: uint8 images [n, channels, height, width] or float32 rows [n, columns].

    ``subject`` [n] numbers whom each sample is of, within its client; None where every sample is of its own.
    """

    x: Tensor
    y: Tensor
    subject: Tensor | None = None  # on the CPU, where samples are divided

    def __len__(self) -> int:
        return len(self.y)

    @property
    def subjects(self) -> int:
        """Of how many subjects the samples are."""
        return len(self) if self.subject is None else len(torch.unique(self.subject))

    @property
    def subject_of_sample(self) -> Tensor:
        """The number of each sample's subject [n]: its own where nothing is said of subjects."""
        return torch.arange(len(self)) if self.subject is None else self.subject

    def at(self, rows: NDArray[np.int64]) -> Split:
        """These rows alone."""
        return Split(self.x[rows], self.y[rows], None if self.subject is None else self.subject[rows])

    def __repr__(self) -> str:  # short: a notebook would print every tensor
        return f"Split({len(self)} samples of {'x'.join(map(str, self.x.shape[1:]))})"

    def to(self, device: torch.device | str) -> Split:
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True, eq=False)
class Client:
    """One participant: its training and test samples, and its view of a raw sample."""

    name: str
    train: Split
    test: Split
    view: View = field(default_factory=View)
    shift: str = "none"

    def to(self, device: torch.device | str) -> Client:
        return replace(self, train=self.train.to(device), test=self.test.to(device))
