"""Which CPU kernels compute, and how many queries are asked at once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from feddrm.models import Net
from feddrm.router.settings import SMALL
from feddrm.threads import small_products, within_operations

CPU_QUERIES, GPU_QUERIES = 512, 3072  # asked at once: what the caches hold, or what fills a GPU


def largest_product(net: Net, batch: int) -> float:
    """Multiplications of the largest matrix product for a batch; without limit where the network convolves."""
    sizes = [math.inf if leaf.dim() > 2 else batch * leaf.numel() for leaf in net.parameters() if leaf.dim() > 1]
    return max(sizes, default=0)


@contextlib.contextmanager
def cpu_kernels(net: Net, batch_size: int, threads: int = 1) -> Iterator[None]:
    """Which of the CPU's kernels compute: the same ones wherever a client trains, so that no bit differs.

    Sums split between threads, and oneDNN's products, round otherwise, and training makes more of it:
    3.8e-6 after 32 rounds of the digits for oneDNN, 1.4e-3 for a second thread.
    """
    with within_operations(threads), small_products(largest_product(net, max(batch_size, CPU_QUERIES))):
        yield


@contextlib.contextmanager
def router_kernels(samples: int) -> Iterator[None]:
    """As :func:`feddrm.runs.run.cpu_kernels`, for fits on so many samples."""
    if samples >= SMALL:
        yield
        return
    with within_operations(1), small_products(0):
        yield
