"""The compiled CPU kernels: the same bits as the tensor operations, no reads beyond the image, and optional."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data.crop import gathered_crop, kernels_for, resized_crop
from feddrm.data.shift import ColourShift
from feddrm.data.view import View

pytestmark = pytest.mark.slow


def random_images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


@given(
    data=st.data(),
    size=st.sampled_from([(8, 8), (32, 32), (16, 64)]),
    shift=st.sampled_from([None, ColourShift(1.5, 0.1, 0.6)]),
    channels=st.sampled_from([1, 3]),
)
def test_one_pass_equals_crop_shift_and_scale(
    data: st.DataObject, size: tuple[int, int], shift: ColourShift | None, channels: int
) -> None:
    pytest.importorskip("numba")
    images = random_images(3, channels if shift is None else 3, *size)
    assert kernels_for(images) is not None
    boxes = []
    for _ in range(3):
        h, w = data.draw(st.integers(1, size[0])), data.draw(st.integers(1, size[1]))
        boxes.append((data.draw(st.integers(0, size[0] - h)), data.draw(st.integers(0, size[1] - w)), h, w))
    statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if images.shape[1] == 3 else ((0.1,), (0.3,))
    view = View(shift, *statistics)
    expected = view(gathered_crop(images, torch.tensor(boxes)))
    result = view(images, torch.tensor(boxes))
    assert torch.equal(result, expected)
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("box", [[0, 0, 33, 32], [-1, 0, 32, 32], [1, 0, 32, 32], [0, 3, 30, 30], [0, 0, 0, 5]])
def test_a_box_beyond_the_image_is_refused(box: list[int]) -> None:
    pytest.importorskip("numba")
    with pytest.raises(IndexError, match="a crop box reaches beyond its image"):
        resized_crop(random_images(1, 3, 32, 32), torch.tensor([box]))


def test_other_sizes_have_no_kernels() -> None:
    assert kernels_for(random_images(1, 3, 28, 28)) is None


def test_numba_is_imported_at_the_first_crop_and_may_be_missing() -> None:
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
