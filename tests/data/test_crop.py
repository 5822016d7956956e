"""Random resized crops: equal to Pillow's, drawn as in torchvision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feddrm.data.crop import RandomResizedCrop, column_first, gathered_crop, resized_crop, take

SIZES = [(8, 8), (32, 32), (64, 64), (28, 28), (96, 96), (12, 32), (16, 64), (1, 5), (5, 1), (128, 3)]


def draw_boxes(data: st.DataObject, count: int, height: int, width: int) -> torch.Tensor:
    boxes = []
    for _ in range(count):
        h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
        boxes.append((data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w))
    return torch.tensor(boxes)


@pytest.mark.parametrize("cut", [resized_crop, gathered_crop])
@given(data=st.data(), size=st.sampled_from(SIZES), channels=st.sampled_from([1, 3]), seed=st.integers(0, 2**16))
def test_every_crop_equals_pillow(
    cut: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    data: st.DataObject,
    size: tuple[int, int],
    channels: int,
    seed: int,
) -> None:
    height, width = size
    boxes = draw_boxes(data, 3, height, width)
    images = np.random.default_rng(seed).integers(0, 256, (3, height, width, channels), dtype=np.uint8)
    ours = cut(torch.from_numpy(images).permute(0, 3, 1, 2), boxes).permute(0, 2, 3, 1).numpy()
    for image, (top, left, h, w), mine in zip(images, boxes.tolist(), ours, strict=True):
        for c in range(channels):
            part = Image.fromarray(image[..., c]).crop((left, top, left + w, top + h))
            assert np.array_equal(np.asarray(part.resize((width, height), Image.Resampling.BILINEAR)), mine[..., c])


def test_the_full_box_changes_nothing() -> None:
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    assert torch.equal(resized_crop(images, torch.tensor([[0, 0, 32, 32]] * 5)), images)


def test_distribution_of_boxes() -> None:
    """The reference draws sides 28..32, and the full image in 9.0 % of all cases."""
    boxes = RandomResizedCrop().boxes(200_000, 32, 32, torch.Generator().manual_seed(0))
    top, left, h, w = boxes.unbind(1)
    assert (h.min().item(), h.max().item(), w.min().item(), w.max().item()) == (28, 32, 28, 32)
    assert bool(((top >= 0) & (top + h <= 32) & (left >= 0) & (left + w <= 32)).all())
    full = ((h == 32) & (w == 32)).double().mean().item()
    assert abs(full - 0.090) < 0.002
    # Positions are uniform: 30-sided crops start at 0, 1, 2 equally often.
    starts = torch.bincount(left[w == 30], minlength=3).double()
    assert torch.allclose(starts / starts.sum(), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.01)


def test_the_full_image_is_taken_where_no_box_fits() -> None:
    wide = RandomResizedCrop(scale=(1.0, 1.0), ratio=(9.0, 9.0)).boxes(10, 16, 32, torch.Generator().manual_seed(0))
    assert wide.tolist() == [[0, 0, 16, 32]] * 10


def test_boxes_depend_on_the_generator_alone() -> None:
    def draw(seed: int) -> list[list[int]]:
        return RandomResizedCrop().boxes(20, 32, 32, torch.Generator().manual_seed(seed)).tolist()

    assert draw(1) == draw(1) != draw(2)


def test_boxes_of_several_generators_equal_those_of_each_alone() -> None:
    """Neither the random numbers nor the arithmetic depend on how many boxes are made at once."""
    crop, counts = RandomResizedCrop(), (1, 300, 7, 0, 1031)
    alone = [crop.boxes(n, 32, 48, torch.Generator().manual_seed(i)) for i, n in enumerate(counts)]
    together = crop.boxes_of(counts, 32, 48, [torch.Generator().manual_seed(i) for i in range(len(counts))])
    assert torch.equal(together, torch.cat(alone))


def test_take_keeps_samples_and_memory_layout() -> None:
    images = torch.randint(0, 256, (6, 3, 8, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    images, index = column_first(images), torch.tensor([4, 0, 4])
    taken = take(images, index)
    assert torch.equal(taken, images[index])
    assert taken.permute(0, 3, 1, 2).is_contiguous()
