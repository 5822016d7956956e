"""Triton kernels of GroupNorm, residual and ReLU for channels-last activations, forward and backward.

A program owns one sample and a block of whole groups. It goes over the pixels once for the sums and
once more to write. In between, the values stay in registers as bfloat16, or are read again where a map
is too large for that. Sums are float32, and no two programs add to the same place, so the result is
reproducible.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 32  # of a block: 64 bytes in a row


class Launch(NamedTuple):
    """The launch of a kernel: channels of a program, pixels of a tile, warps, and whether values stay in registers."""

    block: int
    tile: int
    warps: int
    keep: bool


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and mean and inverse deviation of every group."""
    samples, channels, height, width = x.shape
    y = torch.empty_like(x)
    mean, deviation = torch.empty(2, samples, groups, dtype=torch.float32, device=x.device)
    cut = launch(channels, groups, height * width, False)
    _forward[(samples * (channels // cut.block),)](
        x, x if residual is None else residual, weight, bias, y, mean, deviation, eps, 0,
        CHANNELS=channels, BLOCK=cut.block, PER_GROUP=channels // groups, PIXELS=height * width, TILE=cut.tile,
        KEEP=cut.keep, RELU=relu, RESIDUAL=residual is not None, num_warps=cut.warps,
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
    cut = launch(channels, groups, height * width, True)
    _backward[(samples * (channels // cut.block),)](
        gradient, x, x if y is None else y, weight, bias, mean, deviation, dx, masked, sums, sums[1], 0,
        CHANNELS=channels, BLOCK=cut.block, PER_GROUP=channels // groups, PIXELS=height * width, TILE=cut.tile,
        KEEP=cut.keep, RELU=relu, SIGN=y is not None, num_warps=cut.warps,
    )  # fmt: skip
    dweight, dbias = torch.empty(2, channels, dtype=torch.float32, device=x.device)
    rows = min(triton.next_power_of_2(samples), 128)
    _total[(channels // CHANNELS,)](sums, dweight, dbias, samples, CHANNELS=channels, BLOCK=CHANNELS, ROWS=rows)
    return dx, masked, dweight.to(weight.dtype), dbias.to(bias.dtype)


def launch(channels: int, groups: int, pixels: int, back: bool) -> Launch:
    """Values stay in registers if a thread has at most 64 of them (128 in the forward pass, which holds one tensor)."""
    block = max(CHANNELS, channels // groups)
    values = block * triton.next_power_of_2(pixels)
    warps = min(max(values // 2048, min(values // 1024, 2), 1), 16 if back else 8)
    keep = values <= 32 * warps * (64 if back else 128)
    tile = min(values, 256 * warps if keep else 8192) // block
    return Launch(block, max(tile, 1), warps, keep)


@triton.jit
def _by_group(of_channel, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr):
    """The sum over the group of every channel, at every channel."""
    groups: tl.constexpr = BLOCK // PER_GROUP
    total = tl.sum(tl.reshape(of_channel, (groups, PER_GROUP)), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (groups, PER_GROUP)), (BLOCK,))


@triton.jit
def _again(kept, nil):
    """A value from a register again as float32.

    It is combined with a zero that the compiler does not know. Otherwise the compiler would keep the
    float32 of the first pass instead, and run out of registers.
    """
    return (kept.to(tl.int16, bitcast=True) ^ nil.to(tl.int16)).to(tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit(do_not_specialize=["nil"])
def _forward(
    x, residual, weight, bias, y, mean, deviation, eps, nil,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr, TILE: tl.constexpr,
    KEEP: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = CHANNELS // BLOCK
    sample, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    channel = part * BLOCK + tl.arange(0, BLOCK)
    start = sample.to(tl.int64) * PIXELS * CHANNELS
    total = tl.zeros((TILE, BLOCK), tl.float32)
    squares = tl.zeros((TILE, BLOCK), tl.float32)
    kept = ()
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        raw = tl.load(x + place, mask=(pixel < PIXELS)[:, None], other=0.0)
        if KEEP:
            kept = kept + (raw,)
        value = raw.to(tl.float32)
        total += value
        squares += value * value
    count: tl.constexpr = PIXELS * PER_GROUP
    m = _by_group(tl.sum(total, 0), BLOCK, PER_GROUP) / count
    variance = tl.maximum(_by_group(tl.sum(squares, 0), BLOCK, PER_GROUP) / count - m * m, 0.0)
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
        if KEEP:
            value = _again(kept[first // TILE], nil)
        else:
            value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        out = value * scale[None, :] + shift[None, :]
        if RESIDUAL:
            out += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            out = tl.maximum(out, 0.0)
        tl.store(y + place, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _masked(gradient, value, y, place, inside, scale, shift, RELU: tl.constexpr, SIGN: tl.constexpr):
    """The gradient after the ReLU's mask."""
    d = tl.load(gradient + place, mask=inside, other=0.0)
    if RELU:
        if SIGN:
            passed = tl.load(y + place, mask=inside, other=0.0).to(tl.float32) > 0.0
        else:
            passed = value * scale[None, :] + shift[None, :] > 0.0
        d = tl.where(passed, d, 0.0)
    return d


@triton.jit(do_not_specialize=["nil"])
def _backward(
    gradient, x, y, weight, bias, mean, deviation, dx, masked, dweight, dbias, nil,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr, PIXELS: tl.constexpr, TILE: tl.constexpr,
    KEEP: tl.constexpr, RELU: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = CHANNELS // BLOCK
    sample, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    channel = part * BLOCK + tl.arange(0, BLOCK)
    start = sample.to(tl.int64) * PIXELS * CHANNELS
    groups: tl.constexpr = CHANNELS // PER_GROUP
    m = tl.load(mean + sample * groups + channel // PER_GROUP)
    r = tl.load(deviation + sample * groups + channel // PER_GROUP)
    w = tl.load(weight + channel).to(tl.float32)
    scale = r * w
    shift = tl.load(bias + channel).to(tl.float32) - m * scale
    plains = tl.zeros((TILE, BLOCK), tl.float32)
    alongs = tl.zeros((TILE, BLOCK), tl.float32)
    kept = ()
    gated = ()
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        inside = (pixel < PIXELS)[:, None]
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        raw = tl.load(x + place, mask=inside, other=0.0)
        value = raw.to(tl.float32)
        d = _masked(gradient, value, y, place, inside, scale, shift, RELU, SIGN)
        if SIGN:
            tl.store(masked + place, d, mask=inside)
        if KEEP:
            kept = kept + (raw,)
            gated = gated + (d,)
        wide = d.to(tl.float32)
        plains += wide
        alongs += wide * (value - m[None, :])
    plain = tl.sum(plains, 0)
    along = tl.sum(alongs, 0) * r
    tl.store(dweight + sample * CHANNELS + channel, along)
    tl.store(dbias + sample * CHANNELS + channel, plain)
    count: tl.constexpr = PIXELS * PER_GROUP
    centre = _by_group(plain * w, BLOCK, PER_GROUP) / count
    slope = _by_group(along * w, BLOCK, PER_GROUP) / count * r
    # dx = r (w d - centre - (x - m) slope), with all factors that do not depend on the pixel combined
    by_d = r * w
    by_x = -r * slope
    rest = -r * centre - m * by_x
    for first in tl.static_range(0, PIXELS, TILE):
        pixel = first + tl.arange(0, TILE)
        inside = (pixel < PIXELS)[:, None]
        place = start + pixel[:, None] * CHANNELS + channel[None, :]
        if KEEP:
            value = _again(kept[first // TILE], nil)
            wide = _again(gated[first // TILE], nil)
        else:
            value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
            wide = _masked(gradient, value, y, place, inside, scale, shift, RELU, SIGN).to(tl.float32)
        out = wide * by_d[None, :] + value * by_x[None, :] + rest[None, :]
        tl.store(dx + place, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _total(sums, dweight, dbias, samples, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Sums over the samples; torch's own reduction takes three times as long at this size."""
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
