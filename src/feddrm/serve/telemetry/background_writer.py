"""Things that many put down and one thread takes away in batches: whoever puts never waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Drain(Generic[Item]):
    """``put`` says whether there was room. ``work`` gets what gathered in ``seconds``, or nothing after ``idle``."""

    def __init__(
        self, name: str, work: Callable[[list[Item]], None], *, room: int, seconds: float, idle: float | None = None
    ) -> None:
        self.work, self.room, self.seconds, self.idle = work, room, seconds, idle
        self._items: deque[Item] = deque()
        self._some, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> bool:
        if len(self._items) >= self.room:
            return False
        self._items.append(item)
        if not self._some.is_set():  # asking takes no lock, setting does
            self._some.set()
        return True

    def close(self, patience: float = 5.0) -> None:
        """Let the rest be taken, then stop."""
        self._end.set()
        self._some.set()
        self._thread.join(patience)

    def _run(self) -> None:
        ended = False
        while not ended:
            if self._some.wait(self.idle):
                self._end.wait(self.seconds)  # one piece of work for many items
            self._some.clear()
            ended = self._end.is_set()  # before the items are taken: what came during the last work is not lost
            self.work([self._items.popleft() for _ in range(len(self._items))])
