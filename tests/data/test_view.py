"""A view: crop, shift and scale, in this order."""

from __future__ import annotations

import torch

from feddrm.data.crop import resized_crop
from feddrm.data.shift import ColourShift
from feddrm.data.view import View


def random_images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_crop_comes_before_shift() -> None:
    images, boxes = random_images(4, 3, 32, 32), torch.tensor([[2, 1, 29, 30]] * 4)
    shift = ColourShift(1.5, 0.1, 0.6)
    pixels = View(shift).pixels(images, boxes)
    assert torch.equal(pixels, shift(resized_crop(images, boxes)))
    assert not torch.equal(pixels, resized_crop(shift(images), boxes)), "the two do not commute"


def test_pixels_are_scaled_by_mean_and_standard_deviation() -> None:
    black_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    assert View()(black_white)[:, 0, 0, 0].tolist() == [-1.0, 1.0]
    own = View(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))(black_white)
    assert own[:, :, 0, 0].tolist() == [[-1.0, -1.0, 0.0], [1.0, 3.0, 0.5]]


def test_the_input_is_channels_last_in_memory_and_not_changed() -> None:
    images = random_images(2, 3, 8, 8)
    before = images.clone()
    assert View(ColourShift(0.5))(images).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_rows_of_a_table_are_not_changed() -> None:
    rows = torch.randn(5, 7)
    assert View()(rows) is rows
