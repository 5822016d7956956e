"""The lock file of a server's or a site's folder: one process per folder, its number, and whether it is ready."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from feddrm.errors import FeddrmError
from feddrm.io.atomic import locked

LOCK = ".running"
TRIES, TRY_SECONDS = 10, 0.1


@contextmanager
def only_process(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the folder's lock; yields the function that marks this process as ready."""
    path = folder / LOCK
    for _ in range(TRIES):  # :func:`running` holds the lock for a moment, too
        with locked(path) as free:
            if free:
                _write(path, str(os.getpid()), "w")
                yield lambda: _write(path, " ready", "a")
                return
        time.sleep(TRY_SECONDS)
    raise FeddrmError(f"{folder} is already running: stop that first ('feddrm deploy down')")


def running(folder: Path, *, ready: bool = False) -> int | None:
    """The number of the process that runs in a folder, None if there is none, or with ``ready`` none that is ready."""
    path = folder / LOCK
    if not path.exists():
        return None
    with locked(path, shared=True) as free:
        if free:
            return None
        words = path.read_text().split()
        return int(words[0]) if len(words) > ready else None


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode) as file:
            file.write(text)
    except OSError as error:
        remedy = "free the disk or make its folder writable"
        raise FeddrmError(f"cannot write {path} ({error.strerror}): {remedy}") from error
