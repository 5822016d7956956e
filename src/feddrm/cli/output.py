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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from feddrm.errors import InterruptedRunError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_json(value: Any) -> None:
    """Plain JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Columns that line up; numbers to the right. Off a terminal nothing is wrapped or cut."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    body = [list(row) for row in rows]
    for i, name in enumerate(header):
        numeric = bool(body) and all(isinstance(row[i], int | float) for row in body)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(str(cell)) for cell in row))  # names are not markup
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
def progress_bar(title: str) -> Iterator[Callable[[int, int, str, bool], None]]:
    """``advance(done, total, note, notable)``: a bar on a terminal; elsewhere notable steps as lines, now and then."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=None, note="")

            def move(done: int, total: int, note: str, notable: bool) -> None:  # noqa: ARG001
                bar.update(task, completed=done, total=total, note=note)

            yield move
        return
    last = time.monotonic()

    def line(done: int, total: int, note: str, notable: bool) -> None:
        nonlocal last
        if notable and time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{title}: round {done} of {total}, {note}", file=sys.stderr, flush=True)

    yield line
