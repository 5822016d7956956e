"""Covariate shift of images: saturation, hue, gamma and posterising, exact to Pillow's uint8 values.

Every stage is a function of one pixel's colour, so a whole shift is one table over the 2^24
colours, and so are the two conversions that all shifts share. The arithmetic behind the tables
repeats Pillow's C code, single and double precision included, and runs on any device. It must stay
eager: a compiler may fuse a product and a sum and change the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from feddrm.errors import SettingError

COLOURS = 1 << 24
CHUNK = 1 << 18  # colours per pass: temporaries stay small on CPU

LEVELS = {  # level: (gamma, hue, saturation), each (low, high)
    "low": ((0.9, 1.1), (-0.01, 0.01), (0.9, 1.1)),
    "mid": ((0.75, 1.25), (-0.05, 0.05), (0.7, 1.3)),
    "high": ((0.6, 1.4), (-0.1, 0.1), (0.5, 1.5)),
}
SHIFTS = ("none", *LEVELS, "pool")


@dataclass(frozen=True)
class ColourShift:
    """What one client's camera does to colours.

    No shift at all is None, not the defaults: hue works on 8-bit HSV, which loses a little.
    """

    saturation: float = 1.0
    hue: float = 0.0
    gamma: float = 1.0
    posterise: bool = False

    def __str__(self) -> str:
        text = f"saturation {self.saturation:g}, hue {self.hue:+g}, gamma {self.gamma:g}"
        return text + (", posterised" if self.posterise else "")

    def __call__(self, images: Tensor) -> Tensor:
        """Shift uint8 images [..., 3, height, width] through this shift's own table."""
        colours = _pack(images)
        return _unpack(_look_up(self.table(images.device), colours))

    def direct(self, images: Tensor) -> Tensor:
        """The same stage by stage: cheaper than a table of its own for fewer than 2^24 pixels in all."""
        colours = _pack(images)
        out = torch.cat([self._stages(part) for part in torch.split(colours.flatten(), CHUNK)])
        return _unpack(out.view(colours.shape))

    def table(self, device: torch.device | str) -> Tensor:
        """Shifted colour for every colour, both packed as red + 256 green + 65536 blue (int32)."""
        return _table(self, str(device))

    def _stages(self, colours: Tensor) -> Tensor:
        device = str(colours.device)
        if self.saturation != 1.0:
            colours = _saturate(colours, _blend(self.saturation, device))
        # Even a turn by zero goes through 8-bit HSV and back, as in the reference pipeline.
        hsv = _look_up(_rgb_to_hsv(device), colours)
        turn = math.trunc(255 * self.hue) << 16
        colours = _look_up(_hsv_to_rgb(device), (hsv + turn) & 0xFFFFFF)
        if self.gamma != 1.0 or self.posterise:
            r, g, b = _curve(self.gamma, self.posterise, device)
            colours = r[colours & 255] + g[(colours >> 8) & 255] + b[colours >> 16]
        return colours


def colour_shifts(level: str, clients: int) -> tuple[ColourShift | None, ...]:
    """The paper's shift of every client.

    ``low``, ``mid``, ``high``: bit 0 of the client's number picks gamma, bit 1 hue, bit 2
    saturation (repeating after eight). ``pool``: the 3 x 3 x 3 x 2 grid of the client-number study.
    """
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
    if level not in LEVELS:
        raise SettingError(f"unknown shift '{level}': choose one of {', '.join(SHIFTS)}")
    gamma, hue, saturation = LEVELS[level]
    return tuple(
        ColourShift(saturation=saturation[i >> 2 & 1], hue=hue[i >> 1 & 1], gamma=gamma[i & 1]) for i in range(clients)
    )


def _pack(images: Tensor) -> Tensor:
    r, g, b = images.to(torch.int32, copy=True).unbind(-3)
    return r.add_(g, alpha=1 << 8).add_(b, alpha=1 << 16)


def _look_up(table: Tensor, colours: Tensor) -> Tensor:
    # index_select is half again as fast as indexing here.
    return table.index_select(0, colours.flatten()).view(colours.shape)


def _unpack(colours: Tensor) -> Tensor:
    # On the little-endian machines that torch runs on, the bytes are red, green, blue, 0: no copy is needed.
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

    Product and sum are rounded one after the other, as Pillow's builds for x86-64 do. Its builds
    for ARM fuse them, which moves some values by one for factors such as 1.1 and 1.6.
    """
    value = torch.arange(256, dtype=torch.float32)
    mixed = value[:, None] + torch.tensor(factor, dtype=torch.float32) * (value[None, :] - value[:, None])
    return mixed.clamp(0, 255).to(torch.int32).flatten().to(device)


def _saturate(colours: Tensor, blend: Tensor) -> Tensor:
    """Blend every channel with the ITU-601 grey of its pixel."""
    r, g, b = _channels(colours)
    row = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16 << 8
    return blend[row + r] + (blend[row + g] << 8) + (blend[row + b] << 16)


@lru_cache(maxsize=64)
def _curve(gamma: float, posterise: bool, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The gamma curve, shifted to the place of red, green and blue in a packed colour."""
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
        # Quotients in float, the hue's sum in double, stored as float, then scaled in double.
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
    """The way back; a saturation of zero is grey whatever the hue."""

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
    """The value of the pixel's sixth of the colour circle; the full turn (6) is the first again."""
    out = values[0]
    for number, value in enumerate(values[1:], start=1):
        out = torch.where(sector == number, value, out)
    return out
