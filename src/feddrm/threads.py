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
