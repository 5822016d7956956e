"""A first table schema from CSV files, for a person to complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feddrm.errors import FeddrmError, quoted
from feddrm.io.text import nfc, parse_float, yaml_bytes
from feddrm.registry import nearest
from feddrm.tables.column_kinds import DECIMAL_POINT, CategoryColumn, NumberColumn, RawColumn, is_missing
from feddrm.tables.column_sums import (
    AMONG_NUMBERS,
    MOST_CATEGORIES,
    MOST_DECLARED_CATEGORIES,
    WRITE_DATES,
    correction,
    decimal_comma,
    distinct_codes,
    is_date,
    odd_text,
    text_among_numbers,
)
from feddrm.tables.csv_file import CsvTable, read_table
from feddrm.tables.table_schema import TableSchema

HEADER = """\
# A draft: complete it, then give every client the same file.
# Its centres and scales are rounded statistics of the tables that it was made from: choose tables that may be shown,
# or replace them by round constants that everybody knows.
# Add title and unit, labels of categories ({1: typical angina, 2: atypical angina}), 'missing: true' where a cell of
# any client may be empty, and minimum and maximum: values outside are flagged. A column of codes that are no
# measurement needs 'kind: category' ('--categories NAME' drafts it so).
"""


def draft_schema(paths: Sequence[Path], leave_out: Sequence[str] = (), categories: Sequence[str] = ()) -> bytes:
    """A schema file for the columns of some tables, except those that are no inputs (label, client, identifiers).

    Columns in ``categories`` are codes, also where they are numbers or many.
    """
    tables = [read_table(path) for path in paths]
    other, declared = set(map(nfc, leave_out)), set(map(nfc, categories))
    for name in other:
        if not any(name in table.header for table in tables):
            raise FeddrmError(f"{paths[0]} has no column '{name}' to leave out{nearest(name, tables[0].header)}")
    names = [name for name in tables[0].header if name not in other]
    for table in tables[1:]:
        if difference := sorted((set(table.header) - other) ^ set(names)):
            raise FeddrmError(f"{table.path} and {paths[0]} differ in column '{difference[0]}': give like tables")
    if unknown := sorted(declared - set(names)):
        raise FeddrmError(f"--categories: {paths[0]} has no input column '{unknown[0]}'{nearest(unknown[0], names)}")
    schema = TableSchema(tuple(_column(name, tables, name in declared) for name in names))
    schema.check()
    return HEADER.encode() + yaml_bytes(schema.as_dict())


def _column(name: str, tables: Sequence[CsvTable], declared: bool) -> RawColumn:
    places = [(table, row, table.header.index(name)) for table in tables for row in range(len(table.rows))]
    cells = {i: table.rows[row][index] for i, (table, row, index) in enumerate(places)}
    known = {i: cell for i, cell in cells.items() if not is_missing(cell)}
    missing = len(known) < len(cells)
    numbers = {parse_float(cell) for cell in known.values()}
    if None not in numbers and len(numbers) != 2 and not (declared and numbers):
        values = [table.number(row, index) for table, row, index in (places[i] for i in known)]
        centre, scale = _constants(np.array(values))
        return NumberColumn(name, missing=missing, centre=centre, scale=scale)
    remedy = f"draft it as codes (--categories '{name}')"
    if not declared and (i := decimal_comma(known)) is not None:
        table, row, _ = places[i]
        raise FeddrmError(f"{table.place(row)}: column '{name}' is {quoted(known[i])}: {DECIMAL_POINT}, or {remedy}")
    if not declared and (i := text_among_numbers(known)) is not None:
        table, row, _ = places[i]
        raise FeddrmError(
            f"{table.place(row)}: column '{name}' is {quoted(known[i])}, {AMONG_NUMBERS}, {remedy}, or leave the "
            f"column out (--drop '{name}')"
        )
    codes = distinct_codes(set(known.values()))
    if len(codes) == 1:
        raise FeddrmError(
            f"column '{name}' has the text {quoted(codes[0])} wherever it has one: leave it out, it tells nothing "
            f"(--drop '{name}')"
        )
    if not declared and all(map(is_date, codes)):
        raise FeddrmError(
            f"column '{name}' has dates, such as {quoted(codes[0])}: {WRITE_DATES}, {remedy}, or leave the column out "
            f"(--drop '{name}')"
        )
    if len(codes) > (MOST_DECLARED_CATEGORIES if declared else MOST_CATEGORIES):
        odd = odd_text(codes)
        raise FeddrmError(
            f"column '{name}' has {len(codes)} different texts, such as {quoted(odd)}: "
            f"{correction(odd)}, {'' if declared else f'{remedy}, '}or leave the column out (--drop '{name}')"
        )
    return CategoryColumn(name, missing=missing, categories={code: code for code in codes})


def _constants(numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Centre and scale, rounded to one or two digits: the median, and a standard deviation from the quartiles."""
    if not len(numbers):
        return 0.0, 1.0
    low, centre, high = np.quantile(numbers, (0.25, 0.5, 0.75))
    scale = float(f"{(high - low) / 1.35 or numbers.std() or 1:.1g}")
    digits = -int(np.floor(np.log10(scale)))
    return round(float(centre), digits), scale
