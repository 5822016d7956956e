"""How a client sees a raw sample: crop, its own colours, scaling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.data.crop import resized_crop
from feddrm.data.shift import ColourShift


@dataclass(frozen=True)
class View:
    """From raw samples to network input: crop (where boxes are given), shift, scale, in that order.

    Shifting first and cropping afterwards would not be the same: interpolation and the colour
    stages do not commute. Float rows (tables) pass through unchanged.
    """

    shift: ColourShift | None = None
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(self, x: Tensor, boxes: Tensor | None = None) -> Tensor:
        """Float input for the network from raw samples [n, ...]."""
        if x.dtype != torch.uint8:
            return x
        # Channels last in memory: a round of LeNet took 22 s instead of 28 s that way (two ARM cores).
        x = self.pixels(x, boxes).to(torch.float32, memory_format=torch.channels_last)
        mean, std = (torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return x.div_(255).sub_(mean).div_(std)  # in place: the float copy is our own

    def pixels(self, x: Tensor, boxes: Tensor | None = None) -> Tensor:
        """What the client's camera would store: uint8, cropped and shifted."""
        if boxes is not None:
            x = resized_crop(x, boxes)
        return x if self.shift is None else self.shift(x)
