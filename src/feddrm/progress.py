"""Progress of long work on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

SECONDS_BETWEEN_LINES = 10.0
LONG_STEP = 10.0  # seconds


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None, str, bool], None]]:
    """Yield ``advance(done, total, note, notable)``; ``total`` is None where the number of steps is unknown.

    A terminal gets a bar. Elsewhere, notable steps are printed as lines, at most one every ten seconds. If the first
    step is long, a line says so. Standard output stays free for JSON.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None, note="")

            def update_bar(done: int, total: int | None, note: str, notable: bool) -> None:  # noqa: ARG001
                bar.update(task, completed=done, total=total, note=note)

            yield update_bar
        return
    last = time.monotonic()
    text = f"{title}: the first step takes longer than {LONG_STEP:g} s"
    waiting = threading.Timer(LONG_STEP, partial(print, text, file=sys.stderr, flush=True))
    waiting.daemon = True
    waiting.start()

    def print_line(done: int, total: int | None, note: str, notable: bool) -> None:
        nonlocal last
        waiting.cancel()
        if notable and time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            position = "" if total is None else f"round {done} of {total}, "
            print(f"{title}: {position}{note}", file=sys.stderr, flush=True)

    try:
        yield print_line
    finally:
        waiting.cancel()


@contextmanager
def current_step() -> Iterator[Callable[[str], None]]:
    """Yield ``show(step)``, for a few steps of unknown length. A terminal shows the step; nothing stays of it."""
    if not sys.stderr.isatty():
        yield lambda _step: None  # lines would say nothing to a log
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
