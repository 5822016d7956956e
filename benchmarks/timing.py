"""Times of methods by a stopwatch, and of work on a GPU by events around its captured graph."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

REPEATS = 9
Work = Callable[[], object]


class Stopwatch:
    """Adds up the seconds spent in methods, by name."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def watching(self, owner: type, name: str) -> Iterator[None]:
        method = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - began

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, method)


def captured(work: Work) -> Work:
    """The work as a graph; it runs twice before, so that libraries choose their algorithms."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def replay_us(work: Work | torch.cuda.CUDAGraph) -> float:
    """Microseconds of the work: the median of some runs, each timed by events."""
    run = work.replay if isinstance(work, torch.cuda.CUDAGraph) else work
    times = []
    for _ in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times[2:])


def copy_rate() -> float:
    """TB/s of a large copy on the GPU, read and written."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**31 / replay_us(lambda: target.copy_(source)) / 1e6
