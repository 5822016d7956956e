"""The command ``feddrm report``: the results of one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli.output import JsonFlag, print_json, print_table


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, table.csv and table.tex (one folder: in it; several: ./report)."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Print the table of one run or several, and write an HTML page with the table and all figures.

    Runs that differ by their seed alone are one row: mean and standard deviation over seeds.

    Example: feddrm report runs/first
    """
    from feddrm.report.report_page import write_report
    from feddrm.report.run_table import report_table

    table = report_table(runs)
    if out is None:
        out = runs[0] if len(runs) == 1 or len(table.records) == 1 else Path("report")
    page = write_report(table, out)
    if json:
        print_json(table.values())
        return
    header, differences = table.difference_rows()
    best = "; * is better than every other by paired differences" if differences else ""
    print_table(table.header(), table.text_rows(), title=f"{table.title}{best}")
    if (metrics := table.metric_table()) is not None:
        rows = [[cell.formatted(str, "{}") for cell in row.cells] for row in metrics.rows]
        title = "metrics of the answers in percent, Brier score as it is [95 % interval]"
        print_table(["answers: metric", *table.names], rows, title=title)
    if differences:
        print_table(header, differences, title="paired differences in percentage points [95 % t interval]")
    typer.echo(f"wrote {page}")
