"""Colour shifts of images: saturation, hue, gamma and posterising, with exactly Pillow's uint8 values.

Every stage depends on the colour of one pixel only. A whole shift is therefore one table over the 2^24
colours, and so are the two conversions that all shifts share. The arithmetic that fills the tables
repeats Pillow's C code, including its single and double precision, and runs on any device. It must not
be compiled: a compiler may fuse a product and a sum, which changes the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from feddrm.registry import check_choice

COLOURS = 1 << 24
CHUNK = 1 << 18  # colours per pass, so that temporary tensors stay small on CPU

LEVELS = {  # level: (gamma, hue, saturation), each (low, high)
    "low": ((0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
    "mid": ((0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
    "high": ((0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
}
SHIFTS = ("none", *LEVELS, "pool")


@dataclass(frozen=True)
class ColourShift:
    """The change of colours at one client.

    A client without a shift has None, not the default values: the way through 8-bit HSV and back
    changes some colours even if the hue is not turned.
    """

    saturation: float = 1.0
    hue: float = 0.0
    gamma: float = 1.0
    posterise: bool = False

    def __str__(self) -> str:
        text = f"saturation {self.saturation:g}, hue {self.hue:+g}, gamma {self.gamma:g}"
        return text + (", posterised" if self.posterise else "")

    def __call__(self, images: Tensor) -> Tensor:
        """Shift uint8 images [..., 3, height, width] by this shift's table."""
        return unpack(look_up(self.table(images.device), pack(images)))

    def direct(self, images: Tensor) -> Tensor:
        """The same result stage by stage: cheaper than filling a table for fewer than 2^24 pixels in all."""
        colours = pack(images)
        out = torch.cat([self._stages(part) for part in torch.split(colours.flatten(), CHUNK)])
        return unpack(out.view(colours.shape))

    def table(self, device: torch.device | str) -> Tensor:
        """Shifted colour for every colour, both packed as red + 256 green + 65536 blue (int32)."""
        return _table(self, str(device))

    def _stages(self, colours: Tensor) -> Tensor:
        device = str(colours.device)
        if self.saturation != 1.0:
            colours = _saturate(colours, _blend(self.saturation, device))
        # The reference pipeline goes through 8-bit HSV and back even if the hue does not change.
        hsv = look_up(_rgb_to_hsv(device), colours)
        turn = math.trunc(255 * self.hue) << 16
        colours = look_up(_hsv_to_rgb(device), (hsv + turn) & 0xFFFFFF)
        if self.gamma != 1.0 or self.posterise:
            r, g, b = _curve(self.gamma, self.posterise, device)
            red, green, blue = _channels(colours)
            colours = look_up(r, red) + look_up(g, green) + look_up(b, blue)
        return colours


def colour_shifts(level: str, clients: int) -> tuple[ColourShift | None, ...]:
    """The paper's shift of every client.

    ``low``, ``mid`` and ``high``: bit 0 of the client's number selects gamma, bit 1 hue, bit 2 saturation,
    so shifts repeat after eight clients. ``pool``: the paper's 3 x 3 x 3 x 2 grid for many clients.
    """
    check_choice("shift", level, SHIFTS)
    if level == "none":
        return (None,) * clients
    if level == "pool":
        return tuple(
            ColourShift(
                saturation=(0.4, 1.0, 1.6)[i // 9 % 3],
                hue=(-0.15, 0.0, 0.15)[i // 3 % 3],
                gamma=(0.6, 1.0, 1.4)[i % 3],
                posterise=i // 27 % 2 == 1,
            )
            for i in range(clients)
        )
    gamma, hue, saturation = LEVELS[level]
    return tuple(
        ColourShift(saturation=saturation[i >> 2 & 1], hue=hue[i >> 1 & 1], gamma=gamma[i & 1]) for i in range(clients)
    )


def pack(images: Tensor) -> Tensor:
    """One int32 per pixel, red + 256 green + 65536 blue, from images [..., 3, height, width]."""
    r, g, b = images.to(torch.int32, copy=True).unbind(-3)
    return r.add_(g, alpha=1 << 8).add_(b, alpha=1 << 16)


def look_up(table: Tensor, colours: Tensor) -> Tensor:
    """``table[colours]``; index_select is twice as fast as indexing here."""
    return table.index_select(0, colours.flatten()).view(colours.shape)


def unpack(colours: Tensor) -> Tensor:
    """The inverse of :func:`pack`, without a copy: in little-endian order the bytes are red, green, blue, 0."""
    return colours.view(torch.uint8).view(*colours.shape, 4)[..., :3].movedim(-1, -3)


def _channels(colours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return colours & 255, (colours >> 8) & 255, colours >> 16


def _for_all_colours(stage: Callable[[Tensor], Tensor], device: str) -> Tensor:
    out = torch.empty(COLOURS, dtype=torch.int32, device=device)
    for start in range(0, COLOURS, CHUNK):
        part = slice(start, start + CHUNK)
        out[part] = stage(torch.arange(start, start + CHUNK, dtype=torch.int32, device=device))
    return out


@lru_cache(maxsize=64)
def _table(shift: ColourShift, device: str) -> Tensor:
    return _for_all_colours(shift._stages, device)


@lru_cache(maxsize=64)
def _blend(factor: float, device: str) -> Tensor:
    """Blend of grey (row) and channel value (column) in single precision, truncated.

    Product and sum are rounded separately, as in Pillow's builds for x86-64. Its builds for ARM fuse
    them, which changes some values by one for factors such as 1.1 and 1.6.
    """
    value = torch.arange(256, dtype=torch.float32)
    mixed = value[:, None] + torch.tensor(factor, dtype=torch.float32) * (value[None, :] - value[:, None])
    return mixed.clamp(0, 255).to(torch.int32).flatten().to(device)


def _saturate(colours: Tensor, blend: Tensor) -> Tensor:
    """Blend every channel with the ITU-601 grey of its pixel."""
    r, g, b = _channels(colours)
    row = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16 << 8
    return look_up(blend, row + r) + (look_up(blend, row + g) << 8) + (look_up(blend, row + b) << 16)


@lru_cache(maxsize=64)
def _curve(gamma: float, posterise: bool, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The gamma curve, shifted to the bits of red, green and blue in a packed colour."""
    levels = [int((255 + 1 - 1e-3) * (v / 255) ** gamma) for v in range(256)]
    curve = torch.tensor([v & 0xC0 for v in levels] if posterise else levels, dtype=torch.int32, device=device)
    return curve, curve << 8, curve << 16


@lru_cache(maxsize=4)
def _rgb_to_hsv(device: str) -> Tensor:
    """Pillow's 8-bit hue, saturation and value, packed, for every packed colour."""

    def stage(colours: Tensor) -> Tensor:
        r, g, b = _channels(colours)
        value = torch.maximum(torch.maximum(r, g), b)
        spread = value - torch.minimum(torch.minimum(r, g), b)
        grey = spread == 0
        # As in Pillow: quotients in float; the sum for the hue in double, stored as float, scaled in double.
        chroma = torch.where(grey, 1, spread).float()
        rc, gc, bc = ((value - c).float() / chroma for c in (r, g, b))
        others = torch.where(g == value, 2.0 + rc.double() - bc.double(), 4.0 + gc.double() - rc.double()).float()
        sixths = torch.where(r == value, bc - gc, others).double()
        hue = (torch.fmod(sixths / 6.0 + 1.0, 1.0).float().double() * 255.0).to(torch.int32)
        saturation = (chroma / torch.where(grey, 1, value).float()).double() * 255.0
        packed = (hue.clamp(0, 255) << 16) + (saturation.to(torch.int32).clamp(0, 255) << 8)
        return torch.where(grey, 0, packed) + value

    return _for_all_colours(stage, device)


@lru_cache(maxsize=4)
def _hsv_to_rgb(device: str) -> Tensor:
    """The inverse of :func:`_rgb_to_hsv`. A saturation of zero is grey, whatever the hue is."""

    def rounded(x: Tensor) -> Tensor:  # C's round(): halves away from zero
        return (x + 0.5).floor().to(torch.int32).clamp(0, 255)

    def stage(hsv: Tensor) -> Tensor:
        value = hsv & 255
        position = (hsv >> 16).double() * 6.0 / 255.0
        sector = position.floor()
        f = (position - sector).float().double()
        s = (((hsv >> 8) & 255).double() / 255.0).float().double()
        v = value.double()
        p, q, t = rounded(v * (1.0 - s)), rounded(v * (1.0 - s * f)), rounded(v * (1.0 - s * (1.0 - f)))
        red = _choose(sector, value, q, p, p, t, value)
        green = _choose(sector, t, value, value, q, p, p)
        blue = _choose(sector, p, p, t, value, value, q)
        return torch.where(s == 0, value * 0x010101, red + (green << 8) + (blue << 16))

    return _for_all_colours(stage, device)


def _choose(sector: Tensor, *values: Tensor) -> Tensor:
    """The value for the pixel's sixth of the colour circle; a full turn (6) counts as the first sixth."""
    out = values[0]
    for number, value in enumerate(values[1:], start=1):
        out = torch.where(sector == number, value, out)
    return out
