"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.errors import InterruptedRunError, SettingError

if TYPE_CHECKING:
    from feddrm.checks.findings import Finding

START_AGAIN = "the same command starts the fit again"
LONGEST_FIGURE = 20  # characters: longer cells may be wrapped
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Coverage = Annotated[
    float | None, typer.Option(help="Answer this fraction of queries; abstain from the least certain ones.")
]
Without = Annotated[list[str] | None, typer.Option(help="A client that is away; repeatable.")]
MaxAway = Annotated[
    float | None,
    typer.Option(
        help="Abstain where clients that are away hold more of the probability (default: 0.5). With 1, fall back."
    ),
]
Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        metavar="NAME=COST",
        help="With --rule competence: take this off a client's probability of a right answer; repeatable.",
    ),
]
LabelMiss = Annotated[
    float | None,
    typer.Option(help="Also name the labels that may be right: a set that misses the right one with this probability."),
]
Why = Annotated[
    bool,
    typer.Option("--why", help="Say what made the client likelier than the runner-up, in terms that add up exactly."),
]
Over = Annotated[
    str | None,
    typer.Option(metavar="CLIENT", help="With --why: compare with this client, not with the runner-up."),
]
Views = Annotated[
    int | None, typer.Option(help="Average over this many crops and mirror images of a query (default: 1).")
]

Ignored = Annotated[
    list[str] | None, typer.Option(help="A column of the tables that is no input, such as an id; repeatable.")
]


def print_findings(findings: Iterable[Finding], title: str | None = None) -> None:
    """Print what checks have found, one line each."""
    print_table(["what", "level", "result"], [[f.what, f.level, f.text] for f in findings], title)


def read_costs(words: Sequence[str] | None) -> dict[str, float] | None:
    """Costs by client from ``--cost`` words; None without any."""
    costs: dict[str, float] = {}
    for word in words or ():
        name, equals, text = word.rpartition("=")
        try:
            costs[name] = float(text)
        except ValueError:
            equals = ""
        if not equals:
            raise SettingError(f"--cost {word!r}: write it as NAME=COST, for example oslo=0.1")
    return costs or None


def print_json(value: Any) -> None:
    """Print JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print aligned columns, numbers to the right. Only long text is wrapped, and only on a terminal.

    All text is a ``Text``, so that brackets in names are not read as markup. Rich takes about a millisecond per row:
    rows that need no wrapping are aligned here.
    """
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.segment import Segment, Segments
    from rich.table import Table
    from rich.text import Text

    console, wide = Console(), Console(width=10_000)
    if not console.is_terminal:
        console = wide
    table = Table(box=SIMPLE_HEAD, title=None if title is None else Text(title), title_justify="left", pad_edge=False)
    body = [list(row) for row in rows]
    cells = [[str(cell) for cell in row] for row in body]
    widths = [max(map(cell_len, column)) for column in zip(header, *cells, strict=True)]
    fits = sum(widths) + 3 * len(widths) <= console.width
    one_line = fits and all(cell.isprintable() and cell == cell.strip() for row in (header, *cells) for cell in row)
    for i, name in enumerate(header):
        numeric = bool(body) and all(isinstance(row[i], int | float) for row in body)
        longest = max((cell_len(row[i]) for row in cells), default=0)
        least = widths[i] if one_line else min(longest, LONGEST_FIGURE)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold", min_width=least)
    if one_line:
        with console.capture() as frame:
            console.print(table)
        *head, bottom = frame.get().splitlines(keepends=True)
        right = [column.justify == "right" for column in table.columns]
        lines = [
            _aligned(row, [w - cell_len(cell) for cell, w in zip(row, widths, strict=True)], right) for row in cells
        ]
        console.print(Segments([Segment("".join([*head, *lines, bottom]))]), crop=False, end="")
        return
    for row in cells:
        table.add_row(*map(Text, row))
    if (needed := wide.measure(table).minimum) > console.width:  # a figure cut in two cannot be read
        console = Console(width=needed)
    console.print(table)


def _aligned(row: Sequence[str], spaces: Sequence[int], right: Sequence[bool]) -> str:
    """A table's line of cells that lack so many ``spaces`` of their columns."""
    cells = (" " * n + cell if last else cell + " " * n for cell, n, last in zip(row, spaces, right, strict=True))
    return f" {'   '.join(cells)} \n"


def reason_text(decision: Mapping[str, Any]) -> str:
    """Why a decision abstains, with the values that cannot be."""
    flags = [f"{flag['column']} {flag['value']}: {flag['problem']}" for flag in decision.get("flags", ())]
    return f"{decision['reason']} ({'; '.join(flags)})" if flags else str(decision["reason"])


def check_over(why: bool, over: str | None) -> None:
    """Refuse the client to compare with where nothing is compared."""
    if over is not None and not why:
        raise SettingError(f"--over {over} names the client that --why compares with: give --why, too")


def print_reasons(explained: Iterable[tuple[str, Mapping[str, Any] | None]]) -> None:
    """Print a sentence for every named query that has a client: why it was chosen."""
    from feddrm.rules.explanation_text import explanation_sentence

    for name, entry in explained:
        if entry is not None:
            typer.echo(f"{name}: {explanation_sentence(entry)}")


def client_cells(decision: Mapping[str, Any]) -> list[str]:
    """A decision's client and its probability for a table."""
    name = decision["client"] or "-"
    return [f"{name} (fallback)" if decision["fallback"] else name, f"{decision['client_probability']:.3f}"]


def set_text(label_set: Sequence[str] | None) -> str:
    """A label set for a table."""
    return "-" if label_set is None else ", ".join(label_set) or "none"


@contextmanager
def resumable(then: str = "the same command goes on where it stopped") -> Iterator[None]:
    """Turn Ctrl-C within the block into a message that says how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise InterruptedRunError(then) from stop
