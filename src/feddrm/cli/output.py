"""How commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

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
        table.add_row(*(str(cell) for cell in row))
    console.print(table)
