"""Threads on the CPU: a map over worker threads, and the number of threads inside one torch operation.

Several pieces of work at once, each with one thread, are faster than one piece with several threads:
small networks do too little per operation to share it, and two threads inside an operation may be
slower than one. Besides, a sum that is not divided among threads has the same last bit on any number
of cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import torch

SMALL_PRODUCT = 25_000_000  # multiplications
FEW_SAMPLES = 10_000  # a router's fit on fewer uses one thread per operation and no oneDNN


class Map(Protocol):
    """A function with the signature of ``map`` that may work on several items at once. Results keep the order."""

    def __call__(self, work: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]: ...


@contextmanager
def thread_map(workers: int) -> Iterator[Map]:
    """A ``map`` over ``workers`` threads, or the built-in ``map`` for one worker."""
    if workers <= 1:
        yield map
        return
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def intra_op_threads(threads: int) -> Iterator[None]:
    """Set the number of threads that share one torch operation in this process, until the end of the block.

    It is one wherever clients train in parallel: see docs/decisions/0001-threads.md.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_turn = threading.Condition()
_with_onednn: dict[int, bool] = {}  # by thread in a block: whether it computes with oneDNN
_usual = True  # whether oneDNN is on outside of all blocks


@contextmanager
def without_onednn_if_small(largest: float) -> Iterator[None]:
    """Switch oneDNN off if the largest matrix product has few multiplications.

    On ARM, oneDNN needs about 0.6 ms for each product before it computes anything: 617 us instead of
    33 us for 32 x 64 by 64 x 128. It is faster only beyond about 25 million multiplications (two
    Neoverse-N1 cores, torch 2.13.0). On x86, torch does not use oneDNN for these products.

    The switch is one for the whole process and changes the last bits. So a thread that needs the other position
    waits until no thread computes in this one.
    """
    global _usual
    me = threading.get_ident()
    outer = _with_onednn.get(me)
    with _turn:
        if not _with_onednn:
            _usual = bool(torch.backends.mkldnn.enabled)
    _wait_for_onednn(me, largest > SMALL_PRODUCT and (_usual if outer is None else outer))
    try:
        yield
    finally:
        _wait_for_onednn(me, outer)


def onednn_in_use() -> bool:
    """Whether a thread computes with oneDNN now, so that others that need it off would wait."""
    return any(_with_onednn.values())


def _wait_for_onednn(me: int, wanted: bool | None) -> None:
    """Set the switch for this thread; None leaves it to the others."""
    onednn: Any = torch.backends.mkldnn
    with _turn:
        _with_onednn.pop(me, None)  # a thread that waits does not compute
        _turn.notify_all()
        if wanted is not None:
            _turn.wait_for(lambda: all(used == wanted for used in _with_onednn.values()))
            _with_onednn[me] = onednn.enabled = wanted
        elif not _with_onednn:
            onednn.enabled = _usual


@contextmanager
def router_kernels(samples: int) -> Iterator[None]:
    """Use the kernels of a router's fit on so many samples, in one process and at every site alike.

    A fit on few samples has thousands of small products. With several threads in each, the threads wait for each other
    and for other processes: 30.7 s instead of 4.3 s for the heart data beside other load (two Intel Xeon cores).
    """
    if samples >= FEW_SAMPLES:
        yield
        return
    with intra_op_threads(1), without_onednn_if_small(0):
        yield
