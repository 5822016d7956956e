"""ResNet-18 with GroupNorm and a stem for small images (He et al., 2016; Wu and He, 2018)."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from feddrm.errors import FeddrmError
from feddrm.models.groupnorm import group_norm
from feddrm.models.model import ImageModel, check_width
from feddrm.models.net import Branch, Dense, Net

GROUPS = 16
REDUCTION = 8  # three of the four stages halve the map, rounding up


@dataclass(frozen=True)
class ResNet18(ImageModel):
    """ResNet-18 with GroupNorm, the paper's network for CIFAR.

    ``branch`` is the width of the class and the client branch.
    """

    name: ClassVar[str] = "resnet18"
    widths: ClassVar[tuple[int, int, int, int]] = (64, 128, 256, 512)
    pool: ClassVar[int | None] = None  # side of the windows averaged at the end; None: the whole map

    branch: int = 256

    def check(self, shape: tuple[int, ...], classes: int, clients: int | None = None) -> None:
        super().check(shape, classes, clients)
        check_width("branch", self.branch)
        least = REDUCTION * (self.pool or 1)
        if min(shape[1:]) < least:
            raise FeddrmError(
                f"{self.name} needs images of at least {least}x{least} pixels, not {shape[1]}x{shape[2]}: "
                "enlarge them or use the model mlp"
            )

    def network(self, shape: tuple[int, ...], classes: int, clients: int | None) -> Net:
        channels, *sides = shape
        width = self.widths[0]
        layers: OrderedDict[str, nn.Module] = OrderedDict(stem=Normed(channels, width, relu=True))
        for number, wider in enumerate(self.widths, start=1):
            layers[f"stage{number}"] = nn.Sequential(Block(width, wider, 1 if number == 1 else 2), Block(wider, wider))
            width = wider
        average = nn.AvgPool2d(self.pool) if self.pool else nn.AdaptiveAvgPool2d(1)
        layers["embedding"] = nn.Sequential(average, nn.Flatten())
        cells = math.prod(-(-side // REDUCTION) // self.pool for side in sides) if self.pool else 1

        def branch(outputs: int) -> Branch:
            project, head = Dense(width * cells, self.branch), nn.Linear(self.branch, outputs)
            return project.apply(_initialise), head.apply(_initialise)

        trunk = nn.Sequential(layers).apply(_initialise)
        return Net(trunk, branch(classes), branch(clients) if clients else None)


@dataclass(frozen=True)
class ResNet18Retina(ResNet18):
    """ResNet-18 with 4x4 average pooling and wide branches, for RETINA's 96x96 images.

    The last map of 12x12 cells becomes 3x3, which gives 4608 features: the position in the image stays
    known.
    """

    name: ClassVar[str] = "resnet18_retina"
    pool: ClassVar[int | None] = 4

    branch: int = 512


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them; a new block is its shortcut alone.

    The scale of the last norm starts at zero, so that a new network is as shallow as its shortcuts.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = Normed(inputs, outputs, stride=stride, relu=True)
        self.second = Normed(outputs, outputs, relu=True)
        nn.init.zeros_(self.second.norm.weight)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else Normed(inputs, outputs, size=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x), self.shortcut(x))
        return out


class Normed(nn.Module):
    """A convolution that keeps the size of the map (except for its stride), GroupNorm, and optionally ReLU.

    The input of the shortcut, ``carried``, is added after the norm.
    """

    def __init__(self, inputs: int, outputs: int, *, size: int = 3, stride: int = 1, relu: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        self.norm = nn.GroupNorm(GROUPS, outputs)
        self.relu = relu

    def forward(self, x: Tensor, carried: Tensor | None = None) -> Tensor:
        return group_norm(self.conv(x), self.norm, relu=self.relu, residual=carried)


def _initialise(module: nn.Module) -> None:
    """The initialisation of He et al. (2015): by fan-out for convolutions, by fan-in for linear layers."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        nn.init.zeros_(module.bias)
