"""The command ``feddrm report``: the results of one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddrm.cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from feddrm.report.run_table import RunTable
    from feddrm.report.tables import TableCell

AllFlag = Annotated[bool, typer.Option("--all", help="Print all measures, not only the main four.")]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, table.csv and table.tex (one folder: in it; several: ./report)."),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write every figure as .pdf, .svg and .png into OUT/figures.")
    ] = False,
    everything: AllFlag = False,
    json: JsonFlag = False,
) -> None:
    """Report on runs: a sentence, a table, an HTML page. The page has all figures.

    Runs that differ by their seed alone are one row: mean and standard deviation over seeds.

    Example: feddrm report runs/first
    """
    from feddrm.io.run_files import FIGURES
    from feddrm.report.report_page import write_report
    from feddrm.report.run_table import report_table

    table = report_table(runs)
    if out is None:
        out = runs[0] if len(runs) == 1 or len(table.records) == 1 else Path("report")
    page = write_report(table, out, figures)
    if json:
        print_json(table.values())
        return
    print_report(table, everything)
    typer.echo(f"wrote {page}{f' and {page.parent / FIGURES}' if figures else ''}")


def print_report(table: RunTable, everything: bool) -> None:
    """Print the report's sentence and the main measures, or with ``everything`` all of them."""
    from feddrm.report.page_parts.conclusion import conclusion, main_table, one_class_note

    found, main = conclusion(table), main_table(table)
    if found is not None:
        typer.echo(f"{found.sentence}\n")
    if (note := one_class_note(table)) is not None:
        typer.echo(f"{note}\n")
    header, differences = table.difference_rows()
    best = "; * is better than every other by paired differences" if differences else ""
    if main is not None:
        rows = [[row.cells[0].text, row.cells[0].detail, *_texts(row.cells[1:])] for row in main.rows]
        names = ["run", "answered by", *(column.header.text.lower() for column in main.columns[1:])]
        print_table(names, rows, title=f"{table.title}{best}")
        typer.echo(main.caption)
    if not everything:
        typer.echo("--all prints all measures, and the page shows them")
        return
    print_table(table.header(), table.text_rows(), title=f"all measures: {table.title}{best}")
    if (metrics := table.metric_table()) is not None:
        interval = " [95 % interval]" if table.has_intervals else ""
        title = f"metrics of the answers in percent, Brier score as it is{interval}"
        print_table(["answers: metric", *table.names], [_texts(row.cells) for row in metrics.rows], title=title)
    if differences:
        print_table(header, differences, title="paired differences in percentage points [95 % t interval]")


def _texts(cells: Sequence[TableCell]) -> list[str]:
    """Cells as the terminal shows them, with a star at the best."""
    return [cell.formatted(str, "{}*") for cell in cells]
