"""Reads samples from comma-separated files: one file of numbers per population, or one long table with groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feddrm.drm.basis import Floats
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.text import parse_float, read_csv

Columns = tuple[str, ...] | None  # the names in a header; None without one


def read_samples(paths: Sequence[Path]) -> tuple[dict[str, Floats], Columns]:
    """One population per file, named by its stem, and the column names. All files must have the same columns."""
    samples = [read_sample(path) for path in paths]
    values: dict[str, Floats] = {}
    for path, (columns, numbers) in zip(paths, samples, strict=True):
        expected, first = samples[0]
        if path.stem in values:
            raise FeddrmError(f"{path}: there is another file called '{path.stem}': rename one")
        if (width := numbers.shape[1]) != first.shape[1]:
            raise FeddrmError(f"{path} has {width} columns, {paths[0]} has {first.shape[1]}: give all the same columns")
        if columns and expected and columns != expected:
            theirs, ours = ", ".join(columns), ", ".join(expected)
            raise FeddrmError(f"{path} has columns {theirs}, {paths[0]} has {ours}: give all the same, in one order")
        values[path.stem] = numbers
    return values, next((columns for columns, _ in samples if columns), None)


def read_long_table(path: Path, group: str, columns: Sequence[str] = ()) -> tuple[dict[str, Floats], Columns]:
    """One population per value of the ``group`` column, in the order in which they first occur, from one file.

    ``columns`` are the columns of numbers; all but the group unless they are given.
    """
    rows = read_csv(path, "give the path of a readable .csv file")
    if not rows:
        raise FeddrmError(f"{path} is empty: give a header and rows")
    header = rows[0][1]
    wanted = list(columns) or [name for name in header if name != group]
    for name in (group, *wanted):
        if header.count(name) != 1:
            count = "no column" if name not in header else f"{header.count(name)} columns"
            raise SettingError(f"{path} has {count} '{name}' (there are: {', '.join(header)}): correct the name")
    if not wanted:
        raise SettingError(f"{path} has no column but '{group}': give one with the values")
    places = [header.index(name) for name in wanted]
    samples: dict[str, list[list[float]]] = {}
    for line, cells in rows[1:]:
        _check_width(path, line, cells, len(header))
        if not (name := cells[header.index(group)]):
            raise FeddrmError(f"{path}, line {line}, column {group}: the group is missing: complete or remove the row")
        numbers = [_number(path, line, header[place], cells[place]) for place in places]
        samples.setdefault(name, []).append(numbers)
    return {name: np.array(part) for name, part in samples.items()}, tuple(wanted)


def read_sample(path: Path) -> tuple[Columns, Floats]:
    """Column names and 64-bit numbers. A first row without any number is the header."""
    rows = read_csv(path, "give the path of a readable .csv file")
    columns = None
    if rows and all(parse_float(cell) is None for cell in rows[0][1]):
        columns = tuple(rows.pop(0)[1])
    if len(rows) < 2:
        raise FeddrmError(f"{path} has {len(rows)} rows of numbers: give at least 2")
    width = len(columns or rows[0][1])
    values = np.empty((len(rows), width))
    for i, (line, cells) in enumerate(rows):
        _check_width(path, line, cells, width)
        values[i] = [_number(path, line, columns[j] if columns else j + 1, cell) for j, cell in enumerate(cells)]
    return columns, values


def _check_width(path: Path, line: int, cells: Sequence[str], width: int) -> None:
    if len(cells) != width:
        raise FeddrmError(f"{path}, line {line}: {len(cells)} cells where {width} are expected: complete the row")


def _number(path: Path, line: int, column: str | int, cell: str) -> float:
    value = parse_float(cell)
    if value is None or not math.isfinite(value):
        shown = cell if len(cell) <= 40 else f"{cell[:39]}…"
        raise FeddrmError(
            f"{path}, line {line}, column {column}: {shown!r} is not a finite number: correct it, or remove the row"
        )
    return value
