"""Colour shifts: equal to Pillow and to the reference, and the shift of every client at every level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from feddrm.data.shift import COLOURS, ColourShift, colour_shifts
from feddrm.data.view import View
from refusal import refused

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def hwc(images: torch.Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).cpu().numpy()


@pytest.mark.slow
@pytest.mark.golden
@pytest.mark.parametrize("device", DEVICES)
def test_uint8_values_equal_the_reference(golden: Path, device: str) -> None:
    """A reference file may hold any shifts: the values must be equal for all of them."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    with np.load(golden / "transforms.npz", allow_pickle=False) as file:
        figures = {key: file[key] for key in file.files}
    assert len(figures["levels"])
    images = torch.from_numpy(figures["images"]).permute(0, 3, 1, 2).to(device)
    boxes = torch.from_numpy(figures["boxes"]).to(device)
    for i, (saturation, hue, gamma, posterise) in enumerate(figures["levels"].tolist()):
        shift = ColourShift(saturation, hue, gamma, bool(posterise))
        assert np.array_equal(hwc(shift.direct(images)), figures["shifted"][i]), shift
        assert np.array_equal(hwc(shift(images)), figures["shifted"][i]), shift
        seen = View(shift).pixels(images, boxes)
        assert np.array_equal(hwc(seen), figures["cropped_then_shifted"][i]), shift


@pytest.mark.golden
def test_clients_have_the_shifts_of_our_own_reference() -> None:
    """Our file holds the level high of eight clients, then some of pool; another file may hold other shifts."""
    with np.load(Path(__file__).parents[1] / "golden" / "transforms.npz", allow_pickle=False) as file:
        shifts = [ColourShift(s, h, g, bool(p)) for s, h, g, p in file["levels"].tolist()]
    assert tuple(shifts[:8]) == colour_shifts("high", 8)
    assert len(shifts) > 8
    assert set(shifts[8:]) <= {*colour_shifts("pool", 54)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "shift", [ColourShift(0.5, 0.1, 0.6), ColourShift(1.5, -0.1, 1.4), ColourShift(0.5, 0, 1, True)]
)
def test_all_colours_equal_pillow(shift: ColourShift) -> None:
    """Every one of the 2^24 colours (factors that are exact in binary: see _blend on ARM builds)."""
    every = np.arange(COLOURS, dtype=np.uint32).reshape(4096, 4096)
    picture = Image.fromarray(np.stack([every & 255, every >> 8 & 255, every >> 16], axis=-1).astype(np.uint8))
    picture = ImageEnhance.Color(picture).enhance(shift.saturation)
    h, s, v = picture.convert("HSV").split()
    turned = np.asarray(h) + np.array(int(shift.hue * 255) % 256, dtype=np.uint8)
    picture = Image.merge("HSV", (Image.fromarray(turned), s, v)).convert("RGB")
    picture = picture.point([int(255.999 * (v / 255) ** shift.gamma) for v in range(256)] * 3)
    if shift.posterise:
        picture = ImageOps.posterize(picture, 2)
    table = shift.table("cpu").numpy().reshape(4096, 4096)
    ours = np.stack([table & 255, table >> 8 & 255, table >> 16], axis=-1).astype(np.uint8)
    assert np.array_equal(ours, np.asarray(picture))


def test_client_bits_choose_gamma_hue_saturation() -> None:
    high = colour_shifts("high", 16)
    assert high[1] == ColourShift(0.5, -0.1, 1.4)
    assert high[2] == ColourShift(0.5, 0.1, 0.6)
    assert high[4] == ColourShift(1.5, -0.1, 0.6)
    assert high[8:] == high[:8]
    assert colour_shifts("low", 8)[5] == ColourShift(1.1, -0.01, 1.1)
    assert colour_shifts("mid", 8)[3] == ColourShift(0.7, 0.05, 1.25)
    assert colour_shifts("none", 3) == (None, None, None)
    pool = colour_shifts("pool", 32)
    assert {shift.saturation for shift in pool[:8] if shift} == {0.4}
    assert pool[27] == ColourShift(0.4, -0.15, 0.6, True)
    assert len(set(pool)) == 32


def test_an_unknown_level_is_refused() -> None:
    with refused("unknown shift 'hihg'; did you mean 'high'? (known: none, low, mid, high, pool)"):
        colour_shifts("hihg", 8)
