"""How the server waits for sites: it reports whom it waits for, and gives up on a site that keeps refusing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from feddrm.deploy.wire.channel import Channel
from feddrm.errors import FeddrmError

AGAIN_SECONDS = 2.0
PATIENCE = 30  # refusals of one site, in a step that needs all sites, after which the run stops


class Waiting:
    """Pauses between two attempts to reach the sites.

    A site that is away may come back, so the server waits for it without limit. A site that answers, but
    refuses or sends an unusable reply, needs a person to look at it.
    """

    def __init__(self, channel: Channel, sleep: Callable[[float], None]) -> None:
        self.channel, self.sleep = channel, sleep
        self.refusals: Counter[str] = Counter()

    def pause(self, round: int, missing: str) -> None:
        """Report the ``missing`` sites and sleep."""
        waiting = dict(self.channel.attendance.since)
        self.channel.on_event("waiting", {"round": round, "for": missing, "waiting": waiting})
        self.channel.tell_of_stall(waiting)
        self.sleep(AGAIN_SECONDS)

    def pause_for_all(self, round: int, names: Sequence[str]) -> None:
        """Pause in a step that needs all these sites; stop the run if one of them has refused too often."""
        for name, reason in self.channel.refusals.items():
            self.refusals[name] += 1
            if self.refusals[name] >= PATIENCE:
                raise FeddrmError(
                    f"{name}: {reason} ({PATIENCE} times; correct it there, then 'feddrm deploy run' goes on from here)"
                )
        self.pause(round, self.channel.missing(names))
