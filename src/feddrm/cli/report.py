"""The command ``feddrm report``: the results of one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli.output import JsonFlag, print_json, print_table


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders that 'feddrm train' wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, table.csv and table.tex (one run: its own; several: ./report)."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Print the table of one run or several, and write an HTML page with the table and all figures.

    Example: feddrm report runs/first
    """
    from feddrm.report.report_page import write_report
    from feddrm.report.run_table import report_table

    table = report_table(runs)
    if out is None:
        out = runs[0] if len(table.records) == 1 else Path("report")
    page = write_report(table, out)
    if json:
        print_json(table.values())
        return
    print_table(table.header(), table.text_rows(), title="accuracy in percent")
    typer.echo(f"wrote {page}")
