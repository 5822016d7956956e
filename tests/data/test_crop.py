from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feddrm.data.crop import RandomResizedCrop, column_first, gathered_crop, kernels_for, resized_crop, take
from feddrm.data.shift import ColourShift
from feddrm.data.view import View

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
    """Known facts of the reference's draw: sides 28..32, and the full image in 9.0 % of all cases."""
    boxes = RandomResizedCrop().boxes(200_000, 32, 32, torch.Generator().manual_seed(0))
    top, left, h, w = boxes.unbind(1)
    assert (h.min().item(), h.max().item(), w.min().item(), w.max().item()) == (28, 32, 28, 32)
    assert bool(((top >= 0) & (top + h <= 32) & (left >= 0) & (left + w <= 32)).all())
    full = ((h == 32) & (w == 32)).double().mean().item()
    assert abs(full - 0.090) < 0.002
    # Places are uniform over what fits: 30-sided crops start at 0, 1, 2 equally often.
    starts = torch.bincount(left[w == 30], minlength=3).double()
    assert torch.allclose(starts / starts.sum(), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.01)


def test_no_box_fits_means_the_full_image() -> None:
    wide = RandomResizedCrop(scale=(1.0, 1.0), ratio=(9.0, 9.0)).boxes(10, 16, 32, torch.Generator().manual_seed(0))
    assert wide.tolist() == [[0, 0, 16, 32]] * 10


def test_the_generator_decides() -> None:
    def draw(seed: int) -> list[list[int]]:
        return RandomResizedCrop().boxes(20, 32, 32, torch.Generator().manual_seed(seed)).tolist()

    assert draw(1) == draw(1) != draw(2)


def test_boxes_of_several_are_those_of_each() -> None:
    """Random numbers and arithmetic alike: how many are made at once does not show."""
    crop, counts = RandomResizedCrop(), (1, 300, 7, 0, 1031)
    alone = [crop.boxes(n, 32, 48, torch.Generator().manual_seed(i)) for i, n in enumerate(counts)]
    together = crop.boxes_of(counts, 32, 48, [torch.Generator().manual_seed(i) for i in range(len(counts))])
    assert torch.equal(together, torch.cat(alone))


def random_images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


def test_taking_keeps_samples_and_layout() -> None:
    images, index = column_first(random_images(6, 3, 8, 16)), torch.tensor([4, 0, 4])
    taken = take(images, index)
    assert torch.equal(taken, images[index])
    assert taken.permute(0, 3, 1, 2).is_contiguous()


@given(
    data=st.data(),
    size=st.sampled_from([(8, 8), (32, 32), (16, 64)]),
    shift=st.sampled_from([None, ColourShift(1.5, 0.1, 0.6)]),
    channels=st.sampled_from([1, 3]),
)
def test_one_pass_sees_what_three_do(
    data: st.DataObject, size: tuple[int, int], shift: ColourShift | None, channels: int
) -> None:
    pytest.importorskip("numba")
    images = random_images(3, channels if shift is None else 3, *size)
    assert kernels_for(images) is not None
    boxes = draw_boxes(data, 3, *size)
    statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if images.shape[1] == 3 else ((0.1,), (0.3,))
    view = View(shift, *statistics)
    cropped = gathered_crop(images, boxes)
    expected = view(cropped)
    got = view(images, boxes)
    assert torch.equal(got, expected)
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("box", [[0, 0, 33, 32], [-1, 0, 32, 32], [1, 0, 32, 32], [0, 3, 30, 30], [0, 0, 0, 5]])
def test_kernels_read_nothing_beyond_the_image(box: list[int]) -> None:
    pytest.importorskip("numba")
    with pytest.raises(IndexError, match="a crop box reaches beyond its image"):
        resized_crop(random_images(1, 3, 32, 32), torch.tensor([box]))


def test_numba_is_loaded_late_and_may_be_missing() -> None:
    code = """
import sys
import feddrm, torch
from feddrm.data import resized_crop
assert "numba" not in sys.modules
sys.modules["numba"] = None  # importing it fails from here on
image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
assert torch.equal(resized_crop(image, torch.tensor([[0, 0, 30, 30]])), image)
assert "feddrm.data.crop_numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
