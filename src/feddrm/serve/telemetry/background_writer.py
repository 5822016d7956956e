"""A bounded queue drained in batches by one background thread; ``put`` never blocks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BackgroundWriter(Generic[Item]):
    """Calls ``write`` with the items that were put within ``flush_seconds``.

    ``put`` returns whether there was room. After ``idle_seconds`` without an item ``write`` gets an empty list.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[Item]], None],
        *,
        capacity: int,
        flush_seconds: float,
        idle_seconds: float | None = None,
    ) -> None:
        self.write, self.capacity, self.flush_seconds, self.idle_seconds = write, capacity, flush_seconds, idle_seconds
        self._items: deque[Item] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> bool:
        if len(self._items) >= self.capacity:
            return False
        self._items.append(item)
        if not self._wake.is_set():  # is_set takes no lock, set does
            self._wake.set()
        return True

    def close(self, timeout: float = 5.0) -> None:
        """Write the remaining items, then stop the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        last = False
        while not last:
            if self._wake.wait(self.idle_seconds):
                self._closing.wait(self.flush_seconds)  # so that one write takes many items
            self._wake.clear()
            last = self._closing.is_set()  # read before the items are taken, so that none is lost
            self.write([self._items.popleft() for _ in range(len(self._items))])
