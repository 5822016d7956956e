"""The table schema: the raw columns of a table, and how they become network inputs.

All clients share it, and the router's artifact carries it. So training, queries and forms take the same raw columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddrm.errors import MOST_PROBLEMS, FieldProblem, SettingError, TableError, quoted
from feddrm.io.text import read_yaml_text
from feddrm.registry import check_choice, nearest
from feddrm.tables.column_kinds import KINDS, RawColumn, Usual, Values
from feddrm.typed_settings import typed

INDICATOR = "_missing"  # the end of the name of the input that marks a missing value
REMEDY = "'feddrm data schema FILE.csv' writes a first one"

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class TableSchema:
    """Raw columns in the order of the network's inputs.

    The inputs are those of every column, then one indicator for every column that may be missing. ``filled`` says
    that clients filled missing values from their own data in training. A query of unknown origin gets zeros there.
    """

    columns: tuple[RawColumn, ...]
    filled: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the raw columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def encoded(self) -> tuple[str, ...]:
        """The names of the network's inputs."""
        outputs = [name for column in self.columns for name in column.outputs]
        return (*outputs, *(f"{column.name}{INDICATOR}" for column in self.columns if column.missing))

    @cached_property
    def places(self) -> tuple[tuple[RawColumn, slice, int | None], ...]:
        """Every raw column, where its network inputs are, and the number of its indicator where it may be missing."""
        found, end, mark = [], 0, len(self.encoded) - sum(column.missing for column in self.columns)
        for column in self.columns:
            first, end = end, end + len(column.outputs)
            found.append((column, slice(first, end), mark if column.missing else None))
            mark += column.missing
        return tuple(found)

    def is_encoded(self, names: Iterable[str]) -> bool:
        """Whether columns of these names are network inputs; cells of the same names as the raw columns are raw."""
        return set(self.encoded) <= set(names) and set(self.encoded) != set(self.names)

    @cached_property
    def digest(self) -> str:
        """A checksum of the whole description."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def check(self) -> None:
        """Raise an error for a schema that cannot be."""
        for column in self.columns:
            if not column.name or not column.name.isprintable():
                raise SettingError(f"a column is called {quoted(column.name)}: give it a printable name")
            try:
                column.check()
            except SettingError as error:
                raise SettingError(f"column '{column.name}': {error}") from error
        for names, noun in ((self.names, "columns"), (self.encoded, "network inputs")):
            if twice := [name for i, name in enumerate(names) if name in names[:i]]:
                raise SettingError(f"two {noun} are called '{twice[0]}': rename one")
        if not self.columns:
            raise SettingError("it has no columns: describe at least one")

    def read(self, rows: Rows, place: Callable[[int], str] = "row {}".format) -> Values:
        """Numbers [n, columns] for rows of raw cells in the order of the columns; NaN where a value is missing."""
        return self.read_columns([*zip(*rows, strict=True)] if len(rows) else [()] * len(self.columns), place)

    def read_columns(self, columns: Sequence[Sequence[Any]], place: Callable[[int], str] = "row {}".format) -> Values:
        """As :meth:`read`, for the raw cells of every column."""
        values = np.full((len(columns[0]), len(self.columns)), np.nan)
        problems = []
        for j, (column, cells) in enumerate(zip(self.columns, columns, strict=True)):
            if (whole := column.read_all(cells)) is not None:
                values[:, j] = whole
                continue
            for i, cell in enumerate(cells):
                try:
                    values[i, j] = column.read(cell)
                except ValueError as error:
                    problems.append(FieldProblem(i, column.name, cell, str(error)))
        if problems:
            raise TableError(sorted(problems, key=lambda problem: problem.row), place)
        return values

    def encode(self, values: ArrayLike, fill: ArrayLike | None = None) -> NDArray[np.float32]:
        """Network inputs [n, inputs] from :meth:`read`'s numbers.

        A missing value is taken from ``fill`` [columns]. Where it is NaN or not given, the value becomes zero: the
        centre of a number's scale, and none of the categories.
        """
        values = np.asarray(values, dtype=np.float64)
        missing = np.isnan(values)
        if fill is not None:
            values = np.where(missing, np.asarray(fill, dtype=np.float64), values)
        parts = [column.encode(values[:, j]) for j, column in enumerate(self.columns)]
        marks = [missing[:, j, None].astype(np.float64) for j, column in enumerate(self.columns) if column.missing]
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused later
            return np.concatenate([*parts, *marks], axis=1).astype(np.float32)

    def encode_named(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Network inputs from rows by the names of raw columns. Every column must be there, and no other."""
        problems = []
        for i, row in enumerate(rows):
            for column in self.columns:
                if column.name not in row:
                    problem = f"the column is not there: give {column.allowed}{', or null' if column.missing else ''}"
                    problems.append(FieldProblem(i, column.name, None, problem))
            for name in row:
                if name not in self.names:
                    # Similar names are looked for where they are shown: it takes long for many.
                    similar = nearest(name, self.names) if len(problems) < MOST_PROBLEMS else ""
                    problem = f"no such column{similar}: there are {', '.join(self.names)}"
                    problems.append(FieldProblem(i, str(name)[:64], row[name], problem))
        if problems:
            raise TableError(problems)
        return self.encode(self.read([[row[name] for name in self.names] for row in rows]))

    def decode(self, inputs: ArrayLike) -> list[list[Any]]:
        """What every raw column holds in network inputs [n, inputs], as a person writes it; None: it is missing."""
        x = np.asarray(inputs, dtype=np.float64)
        columns = []
        for column, own, mark in self.places:
            cells, empty = column.decode(x[:, own]), np.zeros(len(x)) if mark is None else x[:, mark]
            columns.append([None if gap == 1 else cell for cell, gap in zip(cells, empty.tolist(), strict=True)])
        return columns

    def problems(self, inputs: ArrayLike, usual: Sequence[Usual] | None = None) -> list[FieldProblem]:
        """The cells of network inputs [n, inputs] that no raw row can have, or that lie outside of their range.

        ``usual`` are mean and deviation of every input, for columns without a declared range.
        """
        x = np.asarray(inputs, dtype=np.float64)
        found = []
        for column, own, mark in self.places:
            empty = np.zeros(len(x), dtype=bool)
            if mark is not None:
                name, marks = self.encoded[mark], x[:, mark]
                empty = marks == 1
                for row in np.flatnonzero((marks != 0) & (marks != 1)).tolist():
                    found.append(FieldProblem(row, name, float(marks[row]), "the mark of a missing value is 0 or 1"))
            known = None if usual is None else usual[own.start]
            for row, value, problem in column.problems(x[:, own], empty, self.filled, known):
                found.append(FieldProblem(row, column.name, value, problem))
        return sorted(found, key=lambda problem: problem.row)

    def examples(self) -> list[dict[str, Any]]:
        """Rows that are made up from the description; in the last one everything is unknown that may be."""
        first, second, third = ({c.name: c.examples()[i] for c in self.columns} for i in range(3))
        gaps = {column.name: None for column in self.columns if column.missing}
        return [first, second, third | gaps] if gaps else [first, second]

    def with_filled(self, filled: bool) -> TableSchema:
        """The schema of a training in which clients did, or did not, fill missing values from their own data."""
        return replace(self, filled=filled)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as YAML and JSON hold them."""
        filled = {"filled": True} if self.filled else {}
        return {"columns": [column.as_dict() for column in self.columns], **filled}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TableSchema:
        """The inverse of :meth:`as_dict`; values may be text. A schema that cannot be is refused."""
        columns = values.get("columns")
        if unknown := [key for key in values if key not in ("columns", "filled")]:
            raise SettingError(f"no setting '{unknown[0]}': give 'columns', a list")
        if not isinstance(columns, Sequence) or not all(isinstance(column, Mapping) for column in columns):
            raise SettingError("give 'columns', a list of columns with 'name' and 'kind'")
        filled = typed(cls, {"filled": values.get("filled", False)})["filled"]
        schema = cls(tuple(_column(number, column) for number, column in enumerate(columns, start=1)), filled)
        schema.check()
        return schema

    @classmethod
    def load(cls, path: str | Path) -> TableSchema:
        """Read a schema file (YAML)."""
        values = read_yaml_text(Path(path), REMEDY)
        try:
            return cls.of(values)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from error


def _column(number: int, given: Mapping[str, Any]) -> RawColumn:
    where = f"column '{given.get('name', number)}'"
    settings = {str(key): value for key, value in given.items() if key != "kind"}
    try:
        check_choice("kind", str(given.get("kind", "")), KINDS)
        kind = KINDS[given["kind"]]
        for key in settings:
            if key not in (known := kind.__dataclass_fields__):
                raise SettingError(f"no setting '{key}'{nearest(key, known)} (a {kind.kind} has: {', '.join(known)})")
        if "name" not in settings:
            raise SettingError("it has no name: give one")
        return kind(**typed(kind, settings))
    except (SettingError, TypeError) as error:
        raise SettingError(f"{where}: {error}") from error
