"""LeNet with GroupNorm (after LeCun et al., 1998); its class and client branches share a chosen part of the trunk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from feddrm.errors import FeddrmError
from feddrm.models.convolution import Convolution
from feddrm.models.model import ImageModel
from feddrm.models.net import Branch, Dense, Net
from feddrm.registry import nearest

SIDE = 32
# The stage at which the client branch leaves the trunk.
SHARING = {"none": "input", "shallow": "stage1", "mid": "stage2", "deep": "embedding"}


@dataclass(frozen=True)
class LeNet(ImageModel):
    """Small LeNet with GroupNorm for 32x32 images; its client branch shares none to all of the trunk.

    ``sharing`` is none, shallow, mid or deep. The client branch has its own copy of the stages that it
    does not share. The class path is always the same.
    """

    name: ClassVar[str] = "lenet"

    sharing: str = "deep"

    def check(self, shape: tuple[int, ...], classes: int, clients: int | None = None) -> None:
        super().check(shape, classes, clients)
        if self.sharing not in SHARING:
            raise FeddrmError(
                f"unknown sharing '{self.sharing}'{nearest(self.sharing, SHARING)} (known: {', '.join(SHARING)})"
            )
        if tuple(shape[1:]) != (SIDE, SIDE):
            raise FeddrmError(
                f"{self.name} wants images of {SIDE}x{SIDE} pixels, not {shape[1]}x{shape[2]}: "
                "resize them or use the model resnet18"
            )

    def network(self, shape: tuple[int, ...], classes: int, clients: int | None) -> Net:
        trunk = nn.Sequential(_stages(shape[0]))
        class_branch: Branch = Dense(256, 128), nn.Linear(128, classes)
        if clients is None:
            return Net(trunk, class_branch)
        leaves_at = SHARING[self.sharing]
        own = _stages(shape[0], after=leaves_at)
        client_branch: Branch = nn.Sequential(own | {"project": Dense(256, 128)}), nn.Linear(128, clients)
        return Net(trunk, class_branch, client_branch, client_stage=leaves_at)


def _stages(channels: int, after: str = "input") -> OrderedDict[str, nn.Module]:
    """The trunk's stages after the named one."""
    makers = {
        "stage1": lambda: _convolution(channels, 32, groups=8),
        "stage2": lambda: _convolution(32, 64, groups=16),
        "embedding": lambda: nn.Sequential(Dense(64 * 5 * 5, 512), Dense(512, 256)),
    }
    names = ["input", *makers]
    return OrderedDict((name, makers[name]()) for name in names[names.index(after) + 1 :])


def _convolution(inputs: int, outputs: int, groups: int) -> nn.Sequential:
    # Maximum and ReLU commute; after the maximum the ReLU has a quarter of the work.
    return nn.Sequential(
        OrderedDict(
            conv=Convolution(inputs, outputs, 5),
            norm=nn.GroupNorm(groups, outputs),
            pool=nn.MaxPool2d(2),
            relu=nn.ReLU(),
        )
    )
