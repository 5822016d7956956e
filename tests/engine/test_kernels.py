"""The kernels of training and of router fits: threads and oneDNN by the size of the work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from feddrm.engine.cuda_graph import first_error
from feddrm.engine.kernels import CPU_QUERIES, cpu_kernels, largest_product
from feddrm.models import LeNet, Mlp
from feddrm.threads import SMALL_PRODUCT

SMALL = Mlp(hidden=(16, 8), branch=4).build((5,), 3)


@pytest.fixture(autouse=True)
def two_threads_and_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state outside of all blocks. Torch may be built without oneDNN, so only the switch is watched."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    assert torch.backends.mkldnn.enabled
    torch.set_num_threads(before)


def test_the_largest_product_is_that_of_the_widest_layer():
    assert largest_product(SMALL, 10) == 10 * 16 * 8
    assert largest_product(LeNet().build((3, 32, 32), 10), 1) == math.inf


def test_training_of_a_small_network_uses_one_thread_and_no_onednn():
    with cpu_kernels(SMALL, 8):
        assert torch.get_num_threads() == 1
        assert not torch.backends.mkldnn.enabled
    with cpu_kernels(SMALL, 8, threads=3):
        assert torch.get_num_threads() == 3


def test_training_of_a_convolution_uses_onednn():
    with cpu_kernels(LeNet().build((3, 32, 32), 10), 8):
        assert torch.get_num_threads() == 1
        assert torch.backends.mkldnn.enabled


def test_a_batch_counts_as_many_samples_as_queries_come_at_once():
    """Training and queries use the same kernels, so the larger of both batches decides."""
    width = SMALL_PRODUCT // (CPU_QUERIES * 64) + 1
    wide = Mlp(hidden=(64, width), branch=4).build((5,), 3)
    with cpu_kernels(wide, 1):
        assert torch.backends.mkldnn.enabled


@contextmanager
def capture() -> Iterator[None]:
    try:
        yield
    finally:
        raise RuntimeError("CUDA error: capturing stream has unjoined work")


def test_an_interrupted_capture_raises_what_interrupted_it():
    """As where a card's memory is full: the capture cannot end, and says only that."""
    with pytest.raises(MemoryError, match="full"), first_error(), capture():
        raise MemoryError("full")
    with pytest.raises(RuntimeError, match="unjoined"), first_error(), capture():
        pass
    with pytest.raises(RuntimeError, match="another"), first_error():
        raise RuntimeError("another")
