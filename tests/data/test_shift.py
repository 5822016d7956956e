from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from feddrm.data.crop import resized_crop
from feddrm.data.shift import COLOURS, ColourShift, colour_shifts
from feddrm.data.view import View
from feddrm.errors import FeddrmError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def need(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


def hwc(images: torch.Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).cpu().numpy()


@pytest.mark.golden
@pytest.mark.parametrize("device", DEVICES)
def test_uint8_values_equal_the_reference(golden: Path, device: str) -> None:
    need(device)
    with np.load(golden / "transforms.npz", allow_pickle=False) as file:
        figures = {key: file[key] for key in file.files}
    images = torch.from_numpy(figures["images"]).permute(0, 3, 1, 2).to(device)
    boxes = torch.from_numpy(figures["boxes"]).to(device)
    for i, (saturation, hue, gamma, posterise) in enumerate(figures["levels"].tolist()):
        shift = ColourShift(saturation, hue, gamma, bool(posterise))
        assert np.array_equal(hwc(shift.direct(images)), figures["shifted"][i]), shift
        assert np.array_equal(hwc(shift(images)), figures["shifted"][i]), shift
        seen = View(shift).pixels(images, boxes)
        assert np.array_equal(hwc(seen), figures["cropped_then_shifted"][i]), shift


@pytest.mark.golden
def test_levels_of_the_reference_are_those_of_the_clients(golden: Path) -> None:
    with np.load(golden / "transforms.npz", allow_pickle=False) as file:
        rows = [ColourShift(s, h, g, bool(p)) for s, h, g, p in file["levels"].tolist()]
    known = {*colour_shifts("high", 8), *colour_shifts("pool", 54)}
    assert set(rows) <= known
    assert tuple(rows[:8]) == colour_shifts("high", 8)


@pytest.mark.parametrize(
    "shift", [ColourShift(0.5, 0.1, 0.6), ColourShift(1.5, -0.1, 1.4), ColourShift(0.5, 0, 1, True)]
)
def test_all_colours_equal_pillow(shift: ColourShift) -> None:
    """Every one of the 2^24 colours (factors that are exact in binary: see _saturate on ARM builds)."""
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


def test_shift_and_crop_do_not_commute() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    boxes = torch.tensor([[2, 1, 29, 30]] * 4)
    shift = ColourShift(1.5, 0.1, 0.6)
    assert not torch.equal(View(shift).pixels(images, boxes), resized_crop(shift(images), boxes))


def test_view_scales_to_plus_minus_one_and_leaves_rows_alone() -> None:
    black_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    assert View()(black_white)[:, 0, 0, 0].tolist() == [-1.0, 1.0]
    rows = torch.randn(5, 7)
    assert View()(rows) is rows


def test_client_bits_choose_gamma_hue_saturation() -> None:
    high = colour_shifts("high", 16)
    assert high[1] == ColourShift(0.5, -0.1, 1.4)
    assert high[2] == ColourShift(0.5, 0.1, 0.6)
    assert high[4] == ColourShift(1.5, -0.1, 0.6)
    assert high[8:] == high[:8]
    assert colour_shifts("none", 3) == (None, None, None)
    pool = colour_shifts("pool", 32)
    assert {shift.saturation for shift in pool[:8] if shift} == {0.4}
    assert pool[27] == ColourShift(0.4, -0.15, 0.6, True)
    assert len(set(pool)) == 32


def test_unknown_level() -> None:
    with pytest.raises(FeddrmError, match="unknown shift 'hihg': choose one of none, low, mid, high, pool"):
        colour_shifts("hihg", 8)
