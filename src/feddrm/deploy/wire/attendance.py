"""Which sites the server waits for, and since when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

OnEvent = Callable[[str, Mapping[str, Any]], None]  # called with the name of an event and its details

AWAY_SECONDS = 10.0  # a site that is missed for a shorter time is not reported: it may just be starting


class Attendance:
    """Keeps, by site, since when the server has waited for it. Reports a site that stays away, and one that is back."""

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        self.since: dict[str, float] = {}
        self.away: set[str] = set()

    def waiting_for(self, names: Iterable[str]) -> dict[str, float]:
        """These sites have not answered yet; returns since when each is waited for."""
        waiting = {name: self.since.setdefault(name, time.time()) for name in names}
        self.on_event("outstanding", {"waiting": waiting})
        return waiting

    def left_out(self, name: str) -> None:
        """The site did not answer in time, or is not there."""
        since = self.since.setdefault(name, time.time())
        if name not in self.away and time.time() - since >= AWAY_SECONDS:
            self.away.add(name)
            self.on_event("away", {"text": f"{name} does not answer: it is waited for where all sites are needed"})

    def heard_from(self, name: str) -> None:
        """The site has answered."""
        since = self.since.pop(name, time.time())
        if name in self.away:
            self.away.remove(name)
            self.on_event("returned", {"text": f"{name} is back after {time.time() - since:.0f} s"})

    def forget(self, members: Iterable[str]) -> None:
        """Wait for none but these."""
        known = set(members)
        self.since = {name: since for name, since in self.since.items() if name in known}
        self.away &= known
