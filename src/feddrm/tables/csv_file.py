"""One CSV file as text: its header, its rows, and where each row is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from feddrm.errors import FeddrmError, quoted, short_list
from feddrm.io.text import nfc, parse_float, read_csv
from feddrm.registry import nearest
from feddrm.tables.column_kinds import DECIMAL_POINT, MAX_FLOAT32, MISSING, Values, all_numbers

PARQUET = ".parquet"


@dataclass(frozen=True)
class CsvTable:
    """A file as text: rows of cells, and the line of the file on which each row begins.

    The path of a data frame is its name in messages.
    """

    path: Path | str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def place(self, row: int) -> str:
        return f"{self.path}, row {self.lines[row]}"

    def column_index(self, name: str, purpose: str, remedy: str = "") -> int:
        """The place of a column. Where the caller chose its name, another one is the remedy."""
        if name not in self.header:
            raise FeddrmError(
                f"{self.path} has no column '{name}' for {purpose}{nearest(name, self.header)}: "
                f"{remedy or f'give one of {short_list(self.header)}'}"
            )
        return self.header.index(name)

    def column(self, name: str, purpose: str) -> list[str]:
        """The column's text; a missing value is refused."""
        index = self.column_index(name, purpose)
        cells = [row[index] for row in self.rows]
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise FeddrmError(
                    f"{self.place(row)}: no value for {purpose} (column '{name}' is {quoted(cell)}): "
                    f"fill it in, remove the row, or rename the value if it is a real name"
                )
            if not cell.isprintable():
                raise FeddrmError(f"{self.place(row)}: column '{name}' is {quoted(cell)}: check the quotes there")
        return cells

    def texts(self, indices: Sequence[int]) -> list[list[str]]:
        """Some cells of every row."""
        return [[row[index] for index in indices] for row in self.rows]

    def numbers(self, indices: Sequence[int], *, can_drop: bool = True) -> Values:
        """The numbers in some cells of every row [rows, cells]. The first cell that holds none is refused."""
        columns = [all_numbers([row[index] for row in self.rows]) for index in indices]
        whole = [column for column in columns if column is not None and not np.isnan(column).any()]
        if len(whole) == len(columns):
            return np.stack(whole, axis=1)
        rows = range(len(self.rows))
        return np.array([[self.number(row, index, can_drop=can_drop) for index in indices] for row in rows])

    def number(self, row: int, index: int, *, can_drop: bool = True) -> float:
        """The number in a cell. ``can_drop`` says whether leaving the column out is a remedy."""
        text, name = self.rows[row][index], self.header[index]
        value, auto = parse_float(text), ""
        if text.lower() in MISSING:
            problem, remedy, auto = f"has no value ({quoted(text)})", "fill it in", "allows gaps"
        elif value is None and parse_float(text.replace(",", ".", 1)) is not None:
            problem, remedy = f"is {quoted(text)}, not a number", DECIMAL_POINT
        elif value is None:
            problem, remedy = f"is {quoted(text)}, not a number", "encode it as numbers"
            auto = "makes categories of texts"
        elif not abs(value) <= MAX_FLOAT32:
            problem, remedy = f"is {quoted(text)}, not a finite 32-bit number", "correct it"
        else:
            return value
        or_drop = f"{f', take schema=auto, which {auto}' if auto else ''}, or drop=['{name}']" if can_drop else ""
        raise FeddrmError(f"{self.place(row)}: column '{name}' {problem}: {remedy}{or_drop}")


def read_table(path: Path) -> CsvTable:
    """Read a UTF-8 file with a header row; a byte order mark is allowed, blank lines are not rows. Or read Parquet."""
    remedy = "give the path of a readable .csv file"
    return _checked_table(path, _parquet_cells(path) if path.suffix.lower() == PARQUET else read_csv(path, remedy))


@runtime_checkable
class DataFrame(Protocol):
    """A pandas data frame, which need not be installed."""

    columns: Any
    iloc: Any


def frame_table(name: str, frame: DataFrame) -> CsvTable:
    """A pandas data frame as text, with the numbers of its rows from 0; a missing value is empty."""
    header = [str(column) for column in frame.columns]
    columns = [_frame_texts(frame.iloc[:, place]) for place in range(len(header))]
    return _checked_table(name, [(-1, header), *enumerate(zip(*columns, strict=True))])


def _frame_texts(column: Any) -> list[str]:
    """The cells of a column of a data frame as text. By columns it takes half as long as by rows."""
    texts = list(map(str.strip, map(str, column.tolist())))
    for row in np.flatnonzero(column.isna().to_numpy()).tolist():
        texts[row] = ""
    return texts


def _checked_table(path: Path | str, given: Iterable[tuple[int, Sequence[str]]]) -> CsvTable:
    rows = [(line, tuple(cells if "".join(cells).isascii() else map(nfc, cells))) for line, cells in given]
    if not rows:
        raise FeddrmError(f"{path} is empty: it needs a header and rows, or leave it out")
    header = rows.pop(0)[1]
    _check_header(path, header)
    table = CsvTable(path, header, tuple(cells for _, cells in rows), tuple(line for line, _ in rows))
    for row, cells in enumerate(table.rows):
        if len(cells) != len(header):
            raise FeddrmError(
                f"{table.place(row)}: {len(cells)} cells, but the header has {len(header)}: "
                f"complete the row, and quote cells that contain the separator"
            )
    if not rows:
        raise FeddrmError(f"{path} has a header but no rows: add some, or leave it out")
    return table


def _parquet_cells(path: Path) -> list[tuple[int, list[str]]]:
    """Header and rows of a Parquet file as text, numbered from 1 as in a spreadsheet; a missing value is empty."""
    try:
        import pyarrow
        from pyarrow.parquet import read_table as read_parquet
    except ImportError as error:
        raise FeddrmError(f"{path} needs pyarrow to be read: pip install 'feddrm[parquet]', or give .csv") from error
    try:
        columns: dict[str, list[Any]] = read_parquet(path).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise FeddrmError(f"cannot read {path} ({reason}): give the path of a readable .parquet file") from error
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return [(i, ["" if cell is None else str(cell).strip() for cell in row]) for i, row in enumerate(rows, 1)]


def _check_header(path: Path | str, header: Sequence[str]) -> None:
    for i, name in enumerate(header):
        if not name:
            raise FeddrmError(
                f"{path}: column {i + 1} has no name: name it in the header "
                f"(or save without row numbers: index=False in pandas)"
            )
        if not name.isprintable():
            raise FeddrmError(f"{path}: column {i + 1} is called {quoted(name)}: check the quotes in the header")
        if name in header[:i]:
            raise FeddrmError(f"{path}: column '{name}' appears twice in the header: rename or remove one")
