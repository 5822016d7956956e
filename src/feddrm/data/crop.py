"""Random resized crops of a whole batch, equal to Pillow's to the last bit.

Pillow resizes in two passes of fixed-point arithmetic, first along the width, then along the
height, and rounds to uint8 between them. If a crop is not larger than its target, every output depends
on two inputs (taps), so one pass is two gathers of whole lines and one interpolation. Where numba is
installed (the extra ``fast``), ``crop_numba.py`` computes the same bits for batches on CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PILLOW_BITS = 22  # Pillow's fixed-point precision for 8-bit images
FAST_SIDES = (8, 16, 32, 64)  # for these, fractions are multiples of 1 / (2 side) and exact in 8 bits


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of 90-100 % of the area, resized to the full size, without mirroring.

    As in torchvision, area and aspect ratio are drawn up to ``tries`` times. The first box that fits is
    taken, or the full image if none fits.
    """

    scale: tuple[float, float] = (0.9, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    tries: int = 10

    def boxes(self, count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """``count`` boxes (top, left, height, width), int64, drawn on the generator's device.

        The number of random values does not depend on their outcome, so all shapes are fixed.
        """
        return self.boxes_of([count], height, width, [generator])

    def boxes_of(self, counts: Sequence[int], height: int, width: int, generators: Sequence[torch.Generator]) -> Tensor:
        """The boxes of several generators, one after another."""
        drawn = [self._draw(count, generator) for count, generator in zip(counts, generators, strict=True)]
        area, aspect, position = (torch.cat(numbers) for numbers in zip(*drawn, strict=True))
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * area)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        aspect = torch.exp(low + (high - low) * aspect)
        w, h = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
        any_fits = fits.any(dim=1)
        h = torch.where(any_fits, h.gather(1, first)[:, 0], float(height))
        w = torch.where(any_fits, w.gather(1, first)[:, 0], float(width))
        top, left = (position[:, 0] * (height - h + 1)).floor(), (position[:, 1] * (width - w + 1)).floor()
        return torch.stack([top, left, h, w], dim=1).long()

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers in [0, 1): [count, tries] for area and aspect ratio, [count, 2] for the position."""
        options: dict[str, Any] = {"dtype": torch.float64, "device": generator.device, "generator": generator}
        area, aspect = torch.rand(2, count, self.tries, **options)
        return area, aspect, torch.rand(2, count, **options).t()


def resized_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Cut each uint8 image [n, c, height, width] at its box and resize it to full size (bilinear)."""
    n, c, height, width = images.shape
    if (kernels := kernels_for(images)) is None:
        return gathered_crop(images, boxes)
    out = torch.empty(n, height, c, width, dtype=torch.uint8)
    kernels.crop(*kernel_input(images, boxes), out.view(n, height, c * width).numpy())
    return out.permute(0, 2, 1, 3)


def gathered_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """:func:`resized_crop` by tensor operations: any device, any size."""
    n, c, height, width = images.shape
    if width == height == 1:
        return images
    columns = images.permute(0, 3, 1, 2).reshape(n * width, c * height)
    wide = _interpolate(columns, boxes[:, 1], boxes[:, 3], width)
    rows = wide.view(n, width, c, height).permute(0, 3, 2, 1).reshape(n * height, c * width)
    tall = _interpolate(rows, boxes[:, 0], boxes[:, 2], height)
    return tall.view(n, height, c, width).permute(0, 2, 1, 3)


def kernels_for(images: Tensor) -> ModuleType | None:
    """The compiled kernels, or None where numba is missing or the kernels do not support these images."""
    supported = images.device.type == "cpu" and all(side in FAST_SIDES for side in images.shape[2:])
    return _numba_kernels() if supported else None


def kernel_input(images: Tensor, boxes: Tensor) -> tuple[object, ...]:
    """Images, boxes and taps as arguments of the kernels; images in :func:`column_first` order are not copied."""
    n, c, height, width = images.shape
    columns = images.permute(0, 3, 1, 2).reshape(n, width, c * height)
    return columns.numpy(), boxes.numpy(), _kernel_taps(width), _kernel_taps(height)


def column_first(images: Tensor) -> Tensor:
    """The same images, stored column by column, because cropping starts with whole columns."""
    return images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)


def take(images: Tensor, index: Tensor) -> Tensor:
    """``images[index]``, in the memory layout of :func:`column_first`."""
    # index_select copies whole images and is 14 times as fast as indexing on CPU.
    return images.permute(0, 3, 1, 2).index_select(0, index).permute(0, 2, 3, 1)


def _interpolate(lines: Tensor, start: Tensor, size: Tensor, full: int) -> Tensor:
    """Stretch ``size`` lines of every image, from line ``start`` on, to ``full`` lines."""
    position, fraction, bits = _taps(full, str(lines.device))
    image = full * torch.arange(len(size), device=lines.device)
    first = ((start + image)[:, None] + position[size]).view(-1)
    # The last line has no right neighbour. Its fraction is zero, so any valid line can stand there.
    both = torch.cat([first, (first + 1).clamp_(max=len(lines) - 1)])
    a, b = lines.index_select(0, both).to(fraction.dtype).view(2, len(first), -1)
    b.sub_(a).mul_(fraction[size].view(-1, 1)).add_(a, alpha=1 << bits)
    rounded: Tensor = b.add_(1 << (bits - 1)).bitwise_right_shift_(bits)
    return rounded.to(torch.uint8)


@lru_cache(maxsize=64)
def _taps(full: int, device: str) -> tuple[Tensor, Tensor, int]:
    """Left tap and fraction of the right tap, for every crop size (row) and output (column).

    Fractions are multiples of 1 / (2 full). If ``full`` is a power of two up to 64, they are exact in
    log2(2 full) bits and everything fits int16, which is twice as fast. Otherwise Pillow's 22 bits in
    int32 are used.
    """
    size = torch.arange(full + 1)[:, None]
    # Position of the output's centre in units of 1 / (2 full), kept inside the crop.
    centre = ((2 * torch.arange(full) + 1) * size - full).clamp(min=0)
    centre = torch.minimum(centre, 2 * full * (size - 1).clamp(min=0))
    position, remainder = centre // (2 * full), centre % (2 * full)
    if full & (full - 1) == 0 and full <= 64:
        bits = full.bit_length()  # log2(2 full)
        fraction = remainder.to(torch.int16)
    else:
        bits = PILLOW_BITS
        fraction = torch.floor(remainder.double() / (2 * full) * (1 << bits) + 0.5).to(torch.int32)
    return position.to(device), fraction.to(device), bits


@cache
def _kernel_taps(full: int) -> tuple[object, object]:
    position, fraction, bits = _taps(full, "cpu")
    return position.numpy(), (fraction.numpy() << (8 - bits)).astype("uint16")


@cache
def _numba_kernels() -> ModuleType | None:
    try:
        from feddrm.data import crop_numba  # here, because numba takes half a second to import
    except ImportError:
        return None
    return crop_numba
