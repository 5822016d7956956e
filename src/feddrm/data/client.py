"""One client of a federation: its name, its samples, and its view of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from feddrm.data.view import View


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and labels: uint8 images [n, channels, height, width] or float32 rows [n, columns]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:  # short: a notebook would print every tensor
        return f"Split({len(self)} samples of {'x'.join(map(str, self.x.shape[1:]))})"

    def to(self, device: torch.device | str) -> Split:
        return Split(self.x.to(device), self.y.to(device))


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
