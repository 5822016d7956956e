"""Flower's SuperNode with a site's polling interval: ``python -m feddrm.deploy.flower.supernode SECONDS ARGS...``.

Flower 1.41 looks for a new message every three seconds, and waits a second when a part of one is not
there yet; no option changes that, and a fit of forty short steps would be two minutes of waiting.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from flwr.supercore.inflatable import inflatable_utils
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

FIRST_WAIT = 0.05


def fetch_eagerly() -> None:
    """Ask again soon for a part of a message that is still under way; Flower itself doubles the pause each time."""
    for fetch in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = fetch.__kwdefaults__
        assert defaults is not None
        assert "initial_backoff" in defaults
        defaults["initial_backoff"] = FIRST_WAIT


def main() -> None:
    """Run the SuperNode; no pause of its main loop is longer than the first argument."""
    longest = float(sys.argv.pop(1))

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, longest))

    start_client_internal.time = SimpleNamespace(sleep=sleep)  # type: ignore[attr-defined, assignment]
    fetch_eagerly()
    flower_supernode()


if __name__ == "__main__":
    main()
