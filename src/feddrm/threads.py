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
        # Work that still runs was cut short by Ctrl-C. Nobody waits for it: it may take minutes, and a scheduler that
        # stops the process gives it half a minute to save.
        pool.shutdown(wait=False, cancel_futures=True)


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


_switch = threading.Lock()
_inside: dict[int, int] = {}  # by thread: in how many blocks of without_onednn_if_small it is
_to_switch_on = False  # by the last thread that leaves


@contextmanager
def without_onednn_if_small(largest: float) -> Iterator[None]:
    """Switch oneDNN off if the largest matrix product has few multiplications.

    On ARM, oneDNN needs about 0.6 ms for each product before it computes anything: 617 us instead of
    33 us for 32 x 64 by 64 x 128. It is faster only beyond about 25 million multiplications (two
    Neoverse-N1 cores, torch 2.13.0). On x86, torch does not use oneDNN for these products.

    The switch is one for the whole process and changes the last bits. So a thread leaves it as it is while another
    thread is in such a block: a training keeps its bits to the end, and none waits.
    """
    global _to_switch_on
    onednn: Any = torch.backends.mkldnn
    me = threading.get_ident()
    with _switch:
        switches = largest <= SMALL_PRODUCT and onednn.enabled and not _inside.keys() - {me}
        if switches:
            onednn.enabled = False
        _inside[me] = _inside.get(me, 0) + 1
    try:
        yield
    finally:
        with _switch:
            _inside[me] -= 1
            if not _inside[me]:
                del _inside[me]
            _to_switch_on = _to_switch_on or switches
            if _to_switch_on and not (_inside.keys() - {me} if switches else _inside):
                onednn.enabled, _to_switch_on = True, False


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
