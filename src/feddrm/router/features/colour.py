"""Statistics of an image's colours and brightness, computed without a network.

They detect shifts of colour and brightness between cameras, and little else.

Histograms are smooth on purpose. Pixels that were shifted and then rounded to 8 bits leave gaps at
single values, and the gaps reveal the shift at once. That is an artefact of how benchmarks are made,
not of cameras. Values are therefore counted at 256 levels, which is exact and the same on every device,
and then spread over neighbouring bins by a Gaussian wider than the gaps. Histograms of two quantities
are not spread, because their bins are at least 16 levels wide.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from feddrm.router.features.tensor_cache import cached_tensor

LEVELS = 256
BINS = 24
WIDTH = 10.0  # of the Gaussian, in levels
QUANTILES = 13
CDF_BINS, CDF_WIDTH = 64, 4.0
PATCHES = 4


def colour_parts(pixels: Tensor) -> dict[str, Tensor]:
    """The columns by kind, of images [n, channels, height, width] in [0, 1]; of three channels hue and saturation."""
    channels = [pixels]
    weights = None
    if pixels.shape[1] == 3:
        hue, saturation, value, chroma = hue_saturation_value(pixels)
        channels += [saturation[:, None], value[:, None]]
        weights = (hue, saturation, value, chroma)
    flat = torch.cat(channels, dim=1)  # [n, c, h, w]
    counts = _counts(_levels(flat, LEVELS), LEVELS)
    smooth = counts @ _kernel(BINS, WIDTH, False, pixels.device)
    parts = {
        "histograms": smooth.flatten(1).sqrt(),  # the root makes a count's spread about the same in full and empty bins
        "quantiles": _quantiles(counts @ _kernel(CDF_BINS, CDF_WIDTH, False, pixels.device)),
        "thumbnail": F.adaptive_avg_pool2d(flat, PATCHES).flatten(1),
    }
    planes = [flat]
    if weights is not None:
        parts["hue and saturation"] = torch.cat(_by_hue(*weights), dim=1)
        hue, _, _, chroma = weights
        angle = 2 * math.pi * hue
        planes += [torch.stack([chroma, chroma * angle.cos(), chroma * angle.sin()], dim=1)]
    return parts | {"moments": torch.cat(_moments(torch.cat(planes, dim=1).flatten(2)), dim=1)}


def hue_saturation_value(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hue, saturation, value and chroma (value times saturation), each [n, height, width] in [0, 1]."""
    value, low = pixels.amax(1), pixels.amin(1)
    chroma = value - low
    saturation = chroma / value.clamp(min=1e-6)
    red, green, blue = pixels.unbind(1)
    safe = chroma.clamp(min=1e-6)
    sixths = torch.where(
        value == red,
        ((green - blue) / safe) % 6,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    return torch.where(chroma > 0, sixths / 6, 0.0), saturation, value, chroma


def _by_hue(hue: Tensor, saturation: Tensor, value: Tensor, chroma: Tensor) -> list[Tensor]:
    """Histograms of hue, plain and weighted by chroma, of hue with saturation, and of saturation with value."""
    circle = _kernel(BINS, WIDTH, True, hue.device)
    plain = _counts(_levels(hue[:, None], LEVELS), LEVELS)[:, 0]
    # Whole numbers, so that the order of the sum does not change the result.
    weighted = _counts(_levels(hue[:, None], LEVELS), LEVELS, _levels(chroma[:, None], LEVELS))[:, 0] / (LEVELS - 1)
    pairs = [
        (_levels(hue, 16) * 6 + _levels(saturation, 6), 96),
        (_levels(saturation, 10) * 10 + _levels(value, 10), 100),
    ]
    joint = [_counts(cell[:, None], cells)[:, 0] for cell, cells in pairs]
    return [(plain @ circle).sqrt(), (weighted @ circle).sqrt(), *(counts.sqrt() for counts in joint)]


def _moments(planes: Tensor) -> list[Tensor]:
    """Means, deviations and covariances of [n, planes, pixels]."""
    mean = planes.mean(2)
    centred = planes - mean[:, :, None]
    covariance = centred @ centred.transpose(1, 2) / planes.shape[2]
    row, column = torch.triu_indices(planes.shape[1], planes.shape[1], device=planes.device)
    return [mean, covariance[:, row, column], covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()]


def _levels(values: Tensor, levels: int) -> Tensor:
    """Numbers in [0, 1] as whole numbers below ``levels``; 256 levels restore the stored 8-bit values."""
    if levels == LEVELS:
        return (values * (LEVELS - 1)).round().long().clamp(0, LEVELS - 1)
    return (values * levels).long().clamp(0, levels - 1)


def _counts(cells: Tensor, levels: int, weights: Tensor | None = None) -> Tensor:
    """The fraction of pixels at every level [n, channels, levels], for cells [n, channels, height, width]."""
    flat = cells.flatten(2)
    n, channels, pixels = flat.shape
    ones = torch.ones_like(flat) if weights is None else weights.flatten(2)
    counted = torch.zeros(n, channels, levels, dtype=torch.int64, device=cells.device).scatter_add(2, flat, ones)
    return counted.float() / pixels


@cached_tensor
def _kernel(bins: int, width: float, circular: bool, device: torch.device) -> Tensor:
    """The share of each level that each bin gets [levels, bins]; rows sum to one."""
    level = torch.arange(LEVELS, dtype=torch.float64) + 0.5
    centre = (torch.arange(bins, dtype=torch.float64) + 0.5) * LEVELS / bins
    distance = (level[:, None] - centre).abs()
    if circular:
        distance = torch.minimum(distance, LEVELS - distance)
    kernel = torch.exp(-0.5 * (distance / width) ** 2)
    return (kernel / kernel.sum(1, keepdim=True)).float().to(device)


def _quantiles(smooth: Tensor) -> Tensor:
    """Quantiles of smooth histograms [n, channels, bins], interpolated within a bin."""
    cdf = smooth.cumsum(-1)
    wanted = torch.linspace(0.05, 0.95, QUANTILES, device=smooth.device)
    below = (cdf[..., None, :] < wanted[:, None]).sum(-1).clamp(max=smooth.shape[-1] - 1)
    high = cdf.gather(-1, below)
    mass = smooth.gather(-1, below).clamp(min=1e-9)
    inside = ((wanted - (high - mass)) / mass).clamp(0, 1)
    return ((below + inside) / smooth.shape[-1]).flatten(1)
