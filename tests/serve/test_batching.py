from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from feddrm.serve.batching import Batcher, Busy


def test_queries_that_arrive_together_are_computed_in_batches() -> None:
    batches: list[int] = []

    def double(queries: Sequence[int]) -> list[int]:
        batches.append(len(queries))
        return [2 * query for query in queries]

    async def go() -> list[int]:
        batcher: Batcher[int, int] = Batcher(double, batch_rows=8)
        return list(await asyncio.gather(*(batcher(i) for i in range(20))))

    assert asyncio.run(go()) == [2 * i for i in range(20)]
    assert batches == [8, 8, 4]


def test_a_bad_query_fails_alone() -> None:
    def invert(queries: Sequence[int]) -> list[float]:
        return [1 / query for query in queries]

    async def go() -> list[float | BaseException]:
        batcher: Batcher[int, float] = Batcher(invert)
        return await asyncio.gather(*(batcher(i) for i in (1, 0, 2)), return_exceptions=True)

    one, failed, half = asyncio.run(go())
    assert (one, half) == (1.0, 0.5)
    assert isinstance(failed, ZeroDivisionError)


def test_a_full_queue_raises_busy_and_recovers() -> None:
    release = threading.Event()

    def slow(queries: Sequence[int]) -> Sequence[int]:
        release.wait(10)
        return queries

    async def go() -> None:
        batcher: Batcher[int, int] = Batcher(slow, batch_rows=1, waiting_rows=3)
        running = [asyncio.ensure_future(batcher(0))]
        await asyncio.sleep(0.05)  # the first query is being computed
        running += [asyncio.ensure_future(batcher(i)) for i in range(1, 4)]
        await asyncio.sleep(0.05)
        assert batcher.waiting == 3
        with pytest.raises(Busy):
            await batcher(9)
        running[3].cancel()
        release.set()
        assert await asyncio.gather(*running[:3]) == [0, 1, 2]
        assert await batcher(9) == 9
        assert batcher.waiting == 0

    asyncio.run(go())


def test_a_query_larger_than_the_queue_is_computed_when_the_queue_is_empty() -> None:
    async def go() -> int:
        batcher: Batcher[int, int] = Batcher(list, batch_rows=2, waiting_rows=3)
        return await batcher(7, rows=10)

    assert asyncio.run(go()) == 7
