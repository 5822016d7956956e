"""Triton kernels of GroupNorm, residual and ReLU for channels-last activations, forward and back.

A program owns one sample and a block of whole groups. It goes over the pixels once for the sums
and once more to write; the second reading comes from the cache. Sums are float32 whatever the
activations are, and no two programs add to the same place, so the result is reproducible.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 32  # of a block: 64 bytes in a row
TILE = 8192  # elements that a program holds at once


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and mean and inverse deviation of every group."""
    samples, channels, height, width = x.shape
    y = torch.empty_like(x)
    mean, deviation = torch.empty(2, samples, groups, dtype=torch.float32, device=x.device)
    block, per_group, pixels, tile, warps = _shape(channels, groups, height * width)
    _forward[(samples, channels // block)](
        x, x if residual is None else residual, weight, bias, y, mean, deviation, eps,
        CHANNELS=channels, BLOCK=block, PER_GROUP=per_group, PIXELS=pixels, TILE=tile,
        RELU=relu, RESIDUAL=residual is not None, num_warps=warps,
    )  # fmt: skip
    return y, mean, deviation


def backward(
    gradient: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of the residual (where y is given), of weight and of bias."""
    samples, channels, height, width = x.shape
    groups = mean.shape[1]
    dx = torch.empty_like(x)
    masked = dx if y is None else torch.empty_like(x)
    sums = torch.empty(2, samples, channels, dtype=torch.float32, device=x.device)
    block, per_group, pixels, tile, warps = _shape(channels, groups, height * width)
    _backward[(samples, channels // block)](
        gradient, x, x if y is None else y, weight, bias, mean, deviation, dx, masked, sums, sums[1],
        CHANNELS=channels, BLOCK=block, PER_GROUP=per_group, PIXELS=pixels, TILE=tile,
        RELU=relu, SIGN=y is not None, num_warps=warps,
    )  # fmt: skip
    dweight, dbias = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    rows = min(triton.next_power_of_2(samples), 128)
    _total[(channels // block,)](sums, dweight, dbias, samples, CHANNELS=channels, BLOCK=block, ROWS=rows)
    return dx, masked, dweight.to(weight.dtype), dbias.to(bias.dtype)


def _shape(channels: int, groups: int, pixels: int) -> tuple[int, int, int, int, int]:
    per_group = channels // groups
    block = max(CHANNELS, per_group)
    tile = min(triton.next_power_of_2(pixels), max(TILE // block, 1))
    return block, per_group, pixels, tile, max(1, min(8, tile * block // 1024))


@triton.jit
def _by_group(of_channel, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr):
    """The sum over the group of every channel, at every channel."""
    groups: tl.constexpr = BLOCK // PER_GROUP
    total = tl.sum(tl.reshape(of_channel, (groups, PER_GROUP)), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (groups, PER_GROUP)), (BLOCK,))


@triton.jit
def _forward(
    x, residual, weight, bias, y, mean, deviation, eps,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr, TILE: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = part * BLOCK + tl.arange(0, BLOCK)
    start = sample.to(tl.int64) * PIXELS * CHANNELS
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(x + place, mask=(pixel < PIXELS)[:, None], other=0.0).to(tl.float32)
        total += tl.sum(value, 0)
        squares += tl.sum(value * value, 0)
    count: tl.constexpr = PIXELS * PER_GROUP
    m = _by_group(total, BLOCK, PER_GROUP) / count
    variance = tl.maximum(_by_group(squares, BLOCK, PER_GROUP) / count - m * m, 0.0)
    r = 1.0 / tl.sqrt(variance + eps)
    groups: tl.constexpr = CHANNELS // PER_GROUP
    # Every channel of a group writes the same number to the same place.
    tl.store(mean + sample * groups + channel // PER_GROUP, m)
    tl.store(deviation + sample * groups + channel // PER_GROUP, r)
    scale = r * tl.load(weight + channel).to(tl.float32)
    shift = tl.load(bias + channel).to(tl.float32) - m * scale
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        inside = (pixel < PIXELS)[:, None]
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        out = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if RESIDUAL:
            out += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            out = tl.maximum(out, 0.0)
        tl.store(y + place, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _masked(gradient, value, y, place, inside, scale, shift, RELU: tl.constexpr, SIGN: tl.constexpr):
    """The gradient behind the ReLU."""
    d = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        if SIGN:
            passed = tl.load(y + place, mask=inside, other=0.0).to(tl.float32) > 0.0
        else:
            passed = value * scale[None, :] + shift[None, :] > 0.0
        d = tl.where(passed, d, 0.0)
    return d


@triton.jit
def _backward(
    gradient, x, y, weight, bias, mean, deviation, dx, masked, dweight, dbias,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr, TILE: tl.constexpr,
    RELU: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    sample, part = tl.program_id(0), tl.program_id(1)
    channel = part * BLOCK + tl.arange(0, BLOCK)
    start = sample.to(tl.int64) * PIXELS * CHANNELS
    groups: tl.constexpr = CHANNELS // PER_GROUP
    m = tl.load(mean + sample * groups + channel // PER_GROUP)
    r = tl.load(deviation + sample * groups + channel // PER_GROUP)
    w = tl.load(weight + channel).to(tl.float32)
    scale = r * w
    shift = tl.load(bias + channel).to(tl.float32) - m * scale
    plain = tl.zeros((BLOCK,), tl.float32)
    along = tl.zeros((BLOCK,), tl.float32)
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        inside = (pixel < PIXELS)[:, None]
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        d = _masked(gradient, value, y, place, inside, scale, shift, RELU, SIGN)
        plain += tl.sum(d, 0)
        along += tl.sum(d * (value - m[None, :]), 0)
    along *= r
    tl.store(dweight + sample * CHANNELS + channel, along)
    tl.store(dbias + sample * CHANNELS + channel, plain)
    count: tl.constexpr = PIXELS * PER_GROUP
    centre = _by_group(plain * w, BLOCK, PER_GROUP) / count
    slope = _by_group(along * w, BLOCK, PER_GROUP) / count * r
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        inside = (pixel < PIXELS)[:, None]
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        d = _masked(gradient, value, y, place, inside, scale, shift, RELU, SIGN)
        out = r[None, :] * (d * w[None, :] - centre[None, :] - (value - m[None, :]) * slope[None, :])
        tl.store(dx + place, out.to(dx.dtype.element_ty), mask=inside)
        if SIGN:
            tl.store(masked + place, d.to(masked.dtype.element_ty), mask=inside)


@triton.jit
def _total(sums, dweight, dbias, samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Sums over the samples; torch's own reduction takes thrice as long at this size."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    along = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, samples, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < samples)[:, None]
        place = row[:, None] * CHANNELS + channel[None, :]
        along += tl.sum(tl.load(sums + place, mask=inside, other=0.0), 0)
        plain += tl.sum(tl.load(sums + samples * CHANNELS + place, mask=inside, other=0.0), 0)
    tl.store(dweight + channel, along)
    tl.store(dbias + channel, plain)
