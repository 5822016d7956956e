"""Models whose features are frozen: only heads are fitted on them, in closed form."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddrm.errors import SettingError
from feddrm.models.model import Model, check_width
from feddrm.models.net import Branch, Net

MOST_FEATURES = 20_000  # their Gram matrix takes 3 GiB, and a fit holds several


class Standardise(nn.Module):
    """(x - mean) / scale, with the pooled means and deviations of the features that a head was fitted on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean, self.scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


class RandomFeatures(nn.Module):
    """cos(W x / |x| + b): random features of the Gaussian kernel (Rahimi and Recht, 2007) on directions.

    Directions need no bandwidth, which would have to be measured on all clients first.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.phase = nn.Parameter(2 * math.pi * torch.rand(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(F.linear(F.normalize(x), self.weight, self.phase))


@dataclass(frozen=True)
class FrozenModel(Model, ABC):
    """A frozen extractor and linear heads on what it computes.

    ``features`` is a number of random features that take the place of the extractor's own. The Gram matrix that a
    client sends then has that many rows, whatever the width of the extractor.
    """

    frozen: ClassVar[bool] = True

    features: int | None = None

    def check(self, shape: tuple[int, ...], classes: int, clients: int | None = None) -> None:
        super().check(shape, classes, clients)
        if self.features is not None:
            check_width("features", self.features)

    @abstractmethod
    def extractor(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The module that computes features [n, width] of samples, and the width."""

    def network(self, shape: tuple[int, ...], classes: int, clients: int | None) -> Net:
        extractor, width = self.extractor(shape)
        stages = [("embedding", extractor)]
        if self.features is not None:
            stages = [("extractor", extractor), ("embedding", RandomFeatures(width, self.features))]
            width = self.features
        if width > MOST_FEATURES:
            raise SettingError(
                f"{width:,} features: one of their Gram matrices takes {8 * width**2 / 2**30:,.0f} GiB: take at most "
                f"{MOST_FEATURES:,}, random ones (--features 2000) or those of a frozen network (--model onnx)"
            )

        def branch(outputs: int) -> Branch:
            return Standardise(width), nn.Linear(width, outputs)

        return Net(nn.Sequential(OrderedDict(stages)), branch(classes), branch(clients) if clients else None)


@dataclass(frozen=True)
class Identity(FrozenModel):
    """No network: the samples are features already, such as embeddings of a foundation model (feddrm fit)"""

    name: ClassVar[str] = "identity"

    def extractor(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        return nn.Flatten(), math.prod(shape)
