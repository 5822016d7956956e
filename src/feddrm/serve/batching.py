"""Batching: queries that arrive while others are computed are computed together; a full queue is an error at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Query = TypeVar("Query")
Answer = TypeVar("Answer")

INLINE_SECONDS = 0.004  # a shorter batch is computed in the event loop: a thread would cost more


class Busy(Exception):
    """The queue is full; the caller may try again after ``seconds``."""

    def __init__(self, seconds: int = 1) -> None:
        super().__init__(f"too many queries are waiting: try again in {seconds} s")
        self.seconds = seconds


class Batcher(Generic[Query, Answer]):
    """``await batcher(query, rows)`` gives the answer to one query, computed in a batch with others.

    A batch is whatever arrived while the batch before was computed. Nobody waits for a batch to fill: a single query
    is computed at once, and many queries make large batches. ``compute`` gets the queries in order of arrival. If it
    fails for a batch, each query is computed alone, so that a bad query fails by itself.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Query]], Sequence[Answer]],
        *,
        batch_rows: int = 256,
        waiting_rows: int = 4096,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.compute, self.batch_rows, self.waiting_rows = compute, batch_rows, waiting_rows
        self.waiting = 0
        self._on_batch = on_batch
        self._queue: deque[tuple[Query, int, asyncio.Future[Answer]]] = deque()
        self._busy = False
        # Seconds and rows of the last batch. The duration of the first one is unknown, so it goes to the thread.
        self._last = (float("inf"), 1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch")

    async def __call__(self, query: Query, rows: int = 1) -> Answer:
        if self.waiting + rows > self.waiting_rows and self.waiting > 0:
            raise Busy
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._queue.append((query, rows, future))
        self.waiting += rows
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start_batch, loop)  # after everything that is ready now has joined the queue
        return await future

    def _start_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        batch: list[tuple[Query, asyncio.Future[Answer]]] = []
        rows = 0
        while self._queue and (not batch or rows + self._queue[0][1] <= self.batch_rows):
            query, count, future = self._queue.popleft()
            self.waiting -= count
            if not future.cancelled():  # the caller has left
                batch.append((query, future))
                rows += count
        if not batch:
            self._busy = False
            return
        if self._on_batch is not None:
            self._on_batch(rows)
        queries, futures = [query for query, _ in batch], [future for _, future in batch]
        seconds, before = self._last
        if seconds * max(1.0, rows / before) < INLINE_SECONDS:
            self._deliver(futures, self._answers(queries, rows))
            loop.call_soon(self._start_batch, loop)
            return
        computing = loop.run_in_executor(self._thread, self._answers, queries, rows)

        def finish(computed: asyncio.Future[list[Answer | Exception]]) -> None:
            self._deliver(futures, computed.result())
            self._start_batch(loop)

        computing.add_done_callback(finish)

    def _answers(self, queries: Sequence[Query], rows: int) -> list[Answer | Exception]:
        started = time.perf_counter()
        answers: list[Answer | Exception]
        try:
            answers = list(self.compute(queries))
        except Exception as error:
            answers = [error] if len(queries) == 1 else [self._answer_alone(query) for query in queries]
        self._last = time.perf_counter() - started, rows
        return answers

    def _answer_alone(self, query: Query) -> Answer | Exception:
        try:
            return self.compute([query])[0]
        except Exception as error:
            return error

    @staticmethod
    def _deliver(futures: Sequence[asyncio.Future[Answer]], answers: Sequence[Answer | Exception]) -> None:
        for future, answer in zip(futures, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
