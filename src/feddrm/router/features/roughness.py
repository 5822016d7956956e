"""How rough a picture is: neighbouring pixels' squared differences, relative to the picture's own variance.

Pixels drawn independently differ by twice the variance, whatever their values, so noise and shuffled pixels are near
two, smooth pictures near zero (von Neumann's ratio). Brightness and contrast do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.data import Client
from feddrm.router.features.base import CPU_BATCH

FLAT = 2.0**-20  # the roughness of a picture without any difference; a slope across a thousand pixels has more


@dataclass(frozen=True)
class RoughnessRange:
    """The roughness of pictures from the smoothest to the roughest."""

    least: float
    most: float

    def widened(self, times: float) -> RoughnessRange:
        """From so many times smoother to so many times rougher."""
        return RoughnessRange(self.least / times, self.most * times)

    def sides(self, roughness: Tensor) -> Tensor:
        """1 where a picture is rougher, -1 where it is smoother, 0 within; one that is no number counts as rougher."""
        return (~(roughness <= self.most)).int() - (roughness < self.least).int()


def measurable(shape: tuple[int, ...]) -> bool:
    """Whether samples of this shape are pictures of more than one pixel."""
    return len(shape) == 3 and shape[1] * shape[2] > 1


def roughness(x: Tensor) -> Tensor:
    """The roughness [N] of pictures [N, channels, height, width]; the channels count together."""
    x = x.float()
    channels, height, width = x.shape[1:]
    pairs = channels * (height * (width - 1) + (height - 1) * width)
    across, down = (x.diff(dim=dim).square_().sum((1, 2, 3)) for dim in (3, 2))
    differences = (across + down) / pairs
    variance = (x - x.mean((2, 3), keepdim=True)).square_().mean((1, 2, 3))
    # Zero by zero is no number, but a blank page is smooth. What is no number before stays so.
    return torch.where(differences == 0, 0.0, differences / variance).clamp(min=FLAT)


def training_roughness(client: Client) -> Tensor:
    """The roughness [n] of a client's training pictures, whole as queries come; none for other samples."""
    x = client.train.x
    if not measurable(tuple(x.shape[1:])):
        return torch.zeros(0, device=x.device)
    return torch.cat([roughness(client.view(part)) for part in torch.split(x, CPU_BATCH)])
