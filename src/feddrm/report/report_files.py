"""Writes a report's files: the HTML page, and its table as CSV and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feddrm.errors import SettingError
from feddrm.io.atomic import write_together
from feddrm.report.report_page import report_page
from feddrm.report.run_table import RunTable, report_table

PAGE, CSV, LATEX = "report.html", "table.csv", "table.tex"


def write_report(table: RunTable, out: Path) -> Path:
    """Write ``report.html``, ``table.csv`` and ``table.tex`` into a folder; returns the page's path."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"--out '{out}' is a file: name a folder")
    contents = {PAGE: report_page(table), CSV: table.csv(), LATEX: table.latex()}
    write_together({out / name: text.encode() for name, text in contents.items()})
    return out / PAGE


def build_report(folders: Sequence[Path], out: Path) -> None:
    """Report run folders into ``out``: either all files are written or none."""
    write_report(report_table(folders), out)
