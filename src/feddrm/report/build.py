"""From run folders to files: the page, and its table for a spreadsheet and for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feddrm.errors import SettingError
from feddrm.io.atomic import write_together
from feddrm.report.run import RunRecord
from feddrm.report.tables import Table

PAGE, CSV, LATEX = "report.html", "table.csv", "table.tex"


def report_table(folders: Sequence[Path]) -> Table:
    """Read run folders into their table; a folder given twice counts once."""
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    if not distinct:
        raise SettingError("there is no run to report: name at least one run folder")
    return Table.of([RunRecord.read(folder) for folder in distinct])


def write_report(table: Table, out: Path) -> Path:
    """Write ``report.html``, ``table.csv`` and ``table.tex`` into a folder; returns the page's path."""
    from feddrm.report.html import report_page

    if out.exists() and not out.is_dir():
        raise SettingError(f"--out '{out}' is a file: name a folder")
    contents = {PAGE: report_page(table), CSV: table.csv(), LATEX: table.latex()}
    write_together({out / name: text.encode() for name, text in contents.items()})
    return out / PAGE


def build_report(folders: Sequence[Path], out: Path) -> None:
    """Report run folders into ``out``: all files or, where anything is wrong, none."""
    write_report(report_table(folders), out)
