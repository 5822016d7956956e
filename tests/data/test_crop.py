from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feddrm.data.crop import RandomResizedCrop, resized_crop


@given(
    data=st.data(),
    size=st.sampled_from([(8, 8), (32, 32), (64, 64), (28, 28), (96, 96), (12, 32), (1, 5)]),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**16),
)
def test_every_crop_equals_pillow(data: st.DataObject, size: tuple[int, int], channels: int, seed: int) -> None:
    height, width = size
    boxes = []
    for _ in range(3):
        h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
        boxes.append((data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w))
    images = np.random.default_rng(seed).integers(0, 256, (3, height, width, channels), dtype=np.uint8)
    ours = resized_crop(torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(boxes)).permute(0, 2, 3, 1).numpy()
    for image, (top, left, h, w), mine in zip(images, boxes, ours, strict=True):
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
    wide = RandomResizedCrop(scale=(1.0, 1.0), ratio=(3.0, 3.0)).boxes(10, 32, 32, torch.Generator().manual_seed(0))
    assert wide.tolist() == [[0, 0, 32, 32]] * 10


def test_the_generator_decides() -> None:
    def draw(seed: int) -> list[list[int]]:
        return RandomResizedCrop().boxes(20, 32, 32, torch.Generator().manual_seed(seed)).tolist()

    assert draw(1) == draw(1) != draw(2)
