"""A second artifact: it answers a share of the requests (canary), or decides beside the served one (shadow)."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from feddrm.serve.loaded_router import Decisions, LoadedRouter, RouterQuery, decide
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.background_writer import BackgroundWriter

log = logging.getLogger("feddrm.serve")
CAPACITY = 1000  # requests that may wait for the shadow; their samples are limited by max_waiting_rows
FLUSH_SECONDS = 0.02
Choice = tuple[str | None, bool]  # the client's name, and whether the router abstains


class _Compared(NamedTuple):
    query: RouterQuery
    served: Sequence[Choice]


class Challenger:
    """The canary takes requests by a hash of their id: the same request is answered by the same artifact.

    The shadow decides in a thread of its own, after the served artifact. What it cannot keep up with is dropped, and
    its errors are counted, so no answer waits for it. ``on_count`` gets results and their number of samples.
    """

    def __init__(
        self, loaded: LoadedRouter, settings: GatewaySettings, on_count: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        self.loaded, self.share = loaded, settings.challenger_share
        self._settings, self._count = settings, on_count
        self._added = self._handled = 0  # samples
        self._writer: BackgroundWriter[_Compared] | None = None
        if not self.share:
            self._writer = BackgroundWriter("shadow", self._decide, capacity=CAPACITY, flush_seconds=FLUSH_SECONDS)

    def takes(self, request_id: str) -> bool:
        """Whether the canary answers the request of this id."""
        if not self.share:
            return False
        return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8]) < self.share * 2**64

    def compare(self, query: RouterQuery, served: LoadedRouter, decisions: Decisions) -> None:
        """Let the shadow decide about the same samples; the caller does not wait."""
        if self._writer is None:
            return
        rows = len(query.x)
        compared = _Compared(query, choices(served.names, decisions))
        room = self._added - self._handled + rows <= self._settings.max_waiting_rows
        if room and self._writer.put(compared):
            self._added += rows
        else:
            self._count("dropped", rows)

    def close(self) -> None:
        """Stop the shadow's thread."""
        if self._writer is not None:
            self._writer.close(timeout=1.0)

    def _decide(self, batch: Sequence[_Compared]) -> None:
        for compared in batch:
            rows = len(compared.query.x)
            try:
                (decisions,) = decide(self.loaded.router, [compared.query], self._settings.views, self._settings.costs)
                own = choices(self.loaded.names, decisions)
                results = Counter("same" if a == b else "changed" for a, b in zip(own, compared.served, strict=True))
            except Exception as error:  # whatever a shadow does, answers go on
                log.warning("the shadow failed", extra={"fields": {"reason": str(error)}})
                results = Counter(failed=rows)
            for result, number in results.items():
                self._count(result, number)
            self._handled += rows


def choices(names: Sequence[str], decisions: Decisions) -> list[Choice]:
    """What was decided about every sample: the client's name, and whether the router abstains."""
    clients = [names[client] if client >= 0 else None for client in decisions.client.tolist()]
    return list(zip(clients, map(bool, decisions.reason), strict=True))
