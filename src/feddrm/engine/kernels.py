"""The CPU kernels of training and queries, the size of a batch of queries, and the release of GPU memory.

Kernels are the same in one process and at every site of a deployed federation, so that no bit differs.
Sums split between threads and oneDNN's products round differently, and training amplifies the difference: after
32 rounds of the digits it is 3.8e-6 with oneDNN and 1.4e-3 with a second thread.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator

import torch

from feddrm.models import Net
from feddrm.threads import intra_op_threads, without_onednn_if_small

CPU_QUERIES, GPU_QUERIES = 512, 3072  # in one batch: what fits the caches of a CPU, what fills a GPU


@contextlib.contextmanager
def cpu_kernels(net: Net, batch_size: int, threads: int = 1) -> Iterator[None]:
    """Use the kernels of training: ``threads`` share an operation, oneDNN computes large products only."""
    with intra_op_threads(threads), without_onednn_if_small(largest_product(net, max(batch_size, CPU_QUERIES))):
        yield


def free_card() -> None:
    """Release GPU memory that nothing uses any more to other processes.

    The traceback of an aborted run refers to its graphs in a cycle, which only the garbage collector frees.
    """
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def largest_product(net: Net, batch: int) -> float:
    """Multiplications of the largest matrix product for a batch; infinite where the network convolves."""
    sizes = [math.inf if leaf.dim() > 2 else batch * leaf.numel() for leaf in net.parameters() if leaf.dim() > 1]
    return max(sizes, default=0)
