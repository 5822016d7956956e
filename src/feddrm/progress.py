"""How far long work has come, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None, str, bool], None]]:
    """``advance(done, total, note, notable)``: a bar on a terminal; elsewhere notable steps as lines, now and then.

    On standard error, so that it may be there beside JSON. ``total`` is None where nobody knows how many there will be.
    """
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None, note="")

            def move(done: int, total: int | None, note: str, notable: bool) -> None:  # noqa: ARG001
                bar.update(task, completed=done, total=total, note=note)

            yield move
        return
    last = time.monotonic()

    def line(done: int, total: int | None, note: str, notable: bool) -> None:
        nonlocal last
        if notable and time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            place = "" if total is None else f"round {done} of {total}, "
            print(f"{title}: {place}{note}", file=sys.stderr, flush=True)

    yield line
