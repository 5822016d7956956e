"""Rows of a table that are queries: they have no labels, and are checked by the router's schema or columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.errors import FeddrmError, short_list
from feddrm.io.text import nfc
from feddrm.registry import nearest
from feddrm.tables.csv_file import read_table
from feddrm.tables.table_schema import TableSchema


def read_rows(
    path: Path,
    columns: tuple[str, ...] | None,
    width: int,
    schema: TableSchema | None = None,
    ignore: Sequence[str] = (),
) -> tuple[NDArray[np.float32], list[str]]:
    """Rows without labels as network inputs, and the place of each.

    With a ``schema`` the file has its raw columns, or its encoded ones. ``ignore`` names other columns of the file.
    Without a schema the file must have ``columns``, or ``width`` columns if none are named.
    """
    if schema is not None and (raw := read_raw_rows(path, schema, ignore)) is not None:
        rows, places = raw
        return schema.encode(schema.read(rows, places.__getitem__)), places
    table = read_table(path)
    present = [name for name in table.header if name not in set(map(nfc, ignore))]
    if columns is None and len(present) != width:
        raise FeddrmError(f"{path} has {len(present)} columns, {width} are wanted: give the columns of training")
    indices = [table.column_index(name, "a query", "add it, as in the training data") for name in columns or present]
    numbers = table.numbers(indices, can_drop=False).astype(np.float32)
    return numbers, [table.place(row) for row in range(len(numbers))]


def read_raw_rows(path: Path, schema: TableSchema, ignore: Sequence[str]) -> tuple[list[list[str]], list[str]] | None:
    """The cells of a schema's raw columns, and the place of each row; None if the file has the encoded columns."""
    table = read_table(path)
    present = [name for name in table.header if name not in set(map(nfc, ignore))]
    if schema.is_encoded(present):
        return None
    if unknown := [name for name in present if name not in schema.names]:
        known, quoted_names = "that the router does not know", [f"'{name}'" for name in unknown]
        what = f"a column {quoted_names[0]} {known}{nearest(unknown[0], schema.names)}: leave it out"
        if len(unknown) > 1:
            what = f"{len(unknown)} columns {known}, {short_list(quoted_names)}: leave them out"
        raise FeddrmError(f"{path} has {what}, or {' '.join(f'--ignore {name}' for name in quoted_names)}")
    indices = [table.column_index(name, "a query", "add it, as in the training data") for name in schema.names]
    return table.texts(indices), [table.place(row) for row in range(len(table.rows))]


def frame_rows(frame: Any, columns: tuple[str, ...] | None, schema: TableSchema | None) -> NDArray[np.float32]:
    """The rows of a data frame as network inputs: its columns are found by name, and encoded by the schema."""
    names = [nfc(str(column)) for column in frame.columns]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise FeddrmError(f"the data frame has two columns '{twice[0]}': rename or remove one")
    rows = frame.set_axis(names, axis=1)
    raw = schema if schema is not None and not schema.is_encoded(names) else None
    wanted = columns or names if raw is None else raw.names
    if lacking := [name for name in wanted if name not in names]:
        raise FeddrmError(f"the data frame has no column '{lacking[0]}'{nearest(lacking[0], names)}: add it")
    if raw is not None:
        if unknown := [name for name in names if name not in wanted]:
            raise FeddrmError(
                f"the data frame has a column '{unknown[0]}' that the router does not know"
                f"{nearest(unknown[0], wanted)}: leave it out"
            )
        return raw.encode(raw.read_columns([_cells(rows[name]) for name in wanted]))
    values = []
    for name in wanted:
        try:
            values.append(rows[name].to_numpy(dtype=np.float32))
        except (TypeError, ValueError, OverflowError) as error:
            raise FeddrmError(f"column '{name}' of the data frame has no numbers ({error}): give numbers") from error
    return np.stack(values, axis=1)


def _cells(column: Any) -> list[Any]:
    """The cells of a column of a data frame as plain values; None where one is missing in pandas' sense."""
    cells: list[Any] = column.tolist()
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return cells
    gaps = column.isna().tolist()
    plain = (cell.item() if isinstance(cell, np.generic) else cell for cell in cells)
    return [None if gap else cell for cell, gap in zip(plain, gaps, strict=True)]
