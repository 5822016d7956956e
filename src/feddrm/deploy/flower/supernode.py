"""Flower's SuperNode with shorter waits: ``python -m feddrm.deploy.flower.supernode SECONDS ARGS...``.

Flower 1.41 looks for a new message every three seconds, and waits one second for a part of a message that is not
there yet. No option changes that. A fit of forty short steps would spend two minutes waiting.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from flwr.supercore.inflatable import inflatable_utils
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

FIRST_BACKOFF = 0.05  # seconds


def shorten_first_backoff() -> None:
    """Ask again soon for a part of a message that has not arrived. Flower doubles the wait each time."""
    for fetch in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = fetch.__kwdefaults__
        assert defaults is not None
        assert "initial_backoff" in defaults
        defaults["initial_backoff"] = FIRST_BACKOFF


def main() -> None:
    """Run the SuperNode. The first argument is the longest pause of its main loop."""
    longest = float(sys.argv.pop(1))

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, longest))

    start_client_internal.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined, assignment]
    shorten_first_backoff()
    flower_supernode()


if __name__ == "__main__":
    main()
