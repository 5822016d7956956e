"""Shorter waits than Flower's. Apart from the SuperNode's module, which imports a database that no daemon needs."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.supercore.inflatable import inflatable_utils

FIRST_BACKOFF = 0.05  # seconds
SHARE = 0.05  # of the time without a message that the next one may have to wait
LONGEST_PAUSE = 2.0  # seconds
MESSAGE = "a message has come"  # the SuperNode's note to the site's daemon, which ends the daemon's pause


def shorten_first_backoff() -> None:
    """Ask again soon for a part of a message that has not arrived. Flower doubles the wait each time."""
    for fetch in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = fetch.__kwdefaults__
        assert defaults is not None
        assert "initial_backoff" in defaults
        defaults["initial_backoff"] = FIRST_BACKOFF


class IdlePause:
    """The pause before the next question: the longer nothing has come, the longer it is. An idle site costs little."""

    def __init__(
        self, shortest: float, longest: float = LONGEST_PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.shortest, self.longest, self.clock, self.since = shortest, longest, clock, clock()

    @property
    def seconds(self) -> float:
        return max(self.shortest, min(self.longest, SHARE * (self.clock() - self.since)))

    def reset(self) -> None:
        """Something came."""
        self.since = self.clock()
