"""Work on several CPU cores: whole pieces side by side, each with one thread of its own.

Small networks do too little per operation for threads to share it: two threads inside an operation
may run slower than one, while two pieces of work at once do get done sooner. And a sum that is never
split between threads is the same to the last bit on any number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import torch

FEW_PRODUCTS = 25_000_000


class Spread(Protocol):
    """``map``, or one that works on several items at once; results come in order."""

    def __call__(self, work: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]: ...


@contextmanager
def side_by_side(workers: int) -> Iterator[Spread]:
    """A ``map`` over ``workers`` threads; the plain one for a single worker."""
    if workers <= 1:
        yield map
        return
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def within_operations(threads: int) -> Iterator[None]:
    """So many threads share an operation, in this process, until the end of the block.

    One, wherever whole clients share the cores: see docs/decisions/0001-threads.md.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def small_products(largest: float) -> Iterator[None]:
    """Without oneDNN where no product has more than ``largest`` multiplications and that is few.

    On ARM each of its products costs some 0.6 ms before anything is computed: 617 us instead of 33 us
    for 32 x 64 by 64 x 128, and only beyond some 25 million multiplications is it faster after all
    (two Neoverse-N1 cores, torch 2.13.0). On x86 torch does not use it for these products.
    """
    library: Any = torch.backends.mkldnn
    if largest > FEW_PRODUCTS or not library.enabled:
        yield
        return
    library.enabled = False
    try:
        yield
    finally:
        library.enabled = True
