"""How commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from feddrm.errors import InterruptedRunError

LONGEST_FIGURE = 20  # letters: a figure, a short name; what is longer may be wrapped
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_json(value: Any) -> None:
    """Plain JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Columns that line up; numbers to the right. Only prose is wrapped, and off a terminal nothing is."""
    console = Console()
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    body = [list(row) for row in rows]
    for i, name in enumerate(header):
        numeric = bool(body) and all(isinstance(row[i], int | float) for row in body)
        longest = max((cell_len(str(row[i])) for row in body), default=0)
        least = longest if longest <= LONGEST_FIGURE else LONGEST_FIGURE
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", min_width=least)
    for row in body:
        table.add_row(*(Text(str(cell)) for cell in row))  # names are not markup
    wide = Console(width=10_000)
    if not console.is_terminal:
        console = wide
    elif (needed := wide.measure(table).minimum) > console.width:  # a figure cut in two, or left out, is no figure
        console = Console(width=needed)
    console.print(table)


@contextmanager
def resumable() -> Iterator[None]:
    """Ctrl-C in here says that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise InterruptedRunError from stop


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
