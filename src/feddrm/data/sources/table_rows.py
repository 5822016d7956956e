"""The rows of CSV tables as the files have them, and the network inputs that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.data.sources.labelled_samples import Label, LabelledSamples
from feddrm.errors import FeddrmError, TableError, quoted, short_list
from feddrm.io.text import nfc, parse_whole
from feddrm.registry import nearest
from feddrm.tables.column_sums import ColumnSums, table_sums
from feddrm.tables.csv_file import CsvTable, read_table
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import Survival
from feddrm.tasks.survival import MOST_DAYS

SamplesByClient = Mapping[str, LabelledSamples]
RowsByClient = Mapping[str, "RawRows"]
NamedTable = tuple[str, CsvTable]

EVENTS = {"true": 1, "false": 0}  # in lower case, besides 1 and 0


@dataclass(frozen=True)
class Roles:
    """The columns of a table that are no inputs: the label, the client, the subject, and those to drop.

    With an ``event``, the label is the time to it, or to the end of follow-up.
    """

    label: str
    client: str | None = None
    drop: Sequence[str] = ()
    event: str | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", nfc(self.label))
        object.__setattr__(self, "event", self.event and nfc(self.event))
        object.__setattr__(self, "client", self.client and nfc(self.client))
        object.__setattr__(self, "subject", self.subject and nfc(self.subject))
        object.__setattr__(self, "drop", tuple(map(nfc, self.drop)))


@dataclass(frozen=True, eq=False)
class RawRows:
    """One client's rows as they are in the tables: numbers where there is no schema, text otherwise."""

    cells: list[Sequence[Any]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    subjects: list[str] = field(default_factory=list)  # none, or one of every row


@dataclass(frozen=True, eq=False)
class RawTable:
    """The names of the raw columns of one client's table, and its rows."""

    columns: tuple[str, ...]
    rows: RawRows

    def sums(self, counted: Sequence[bool], categories: Sequence[str]) -> dict[str, ColumnSums]:
        """What the client tells of its columns; mean and squares are those of the ``counted`` rows."""
        declared = set(map(nfc, categories))
        if unknown := sorted(declared - set(self.columns)):
            raise FeddrmError(
                f"categories: there is no column '{unknown[0]}'{nearest(unknown[0], self.columns)}: give one of "
                f"{short_list(self.columns)}"
            )
        return table_sums(self.columns, self.rows.cells, counted, declared, self.rows.places.__getitem__)

    def samples(self, schema: TableSchema | None) -> LabelledSamples:
        """The samples with labels as text; the schema may order the columns differently."""
        rows = self.rows
        if schema is not None and schema.names != self.columns:
            order = [self.columns.index(name) for name in schema.names]
            rows = replace(rows, cells=[[row[place] for place in order] for row in rows.cells])
        return encoded({"": rows}, schema)[""]


def read_raw_table(path: Path, client: str, roles: Roles, schema: TableSchema | None, as_text: bool) -> RawTable:
    """One client's file. Without a schema its cells are numbers, unless ``as_text``: the schema follows then."""
    columns, rows = rows_by_client([(client, read_table(path))], roles, schema, as_text)
    return RawTable(columns, rows[client])


def rows_by_client(
    tables: Sequence[NamedTable],
    roles: Roles,
    schema: TableSchema | None,
    as_text: bool,
    columns: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], RowsByClient]:
    """Names of the raw columns and the rows of every client, with labels as text.

    The clients are the files, or the values of the client column in order of appearance. The files may order their
    columns differently, but must have the same columns (those of ``schema`` or of ``columns``, if given).
    """
    if columns is None:
        _check_roles([table for _, table in tables], roles)
        columns = None if schema is None else schema.names
    lacking = "that others lack" if schema is None else "that the schema lacks"
    clients: dict[str, RawRows] = {}
    for stem, table in tables:
        columns = _feature_columns(table, roles, columns, lacking)
        labels = _labels(table, roles)
        if roles.client is None and stem in clients:
            raise FeddrmError(
                f"{table.path}: there is another file for client '{stem}': rename one, or give {{name: path}}"
            )
        owners = [stem] * len(labels) if roles.client is None else table.column(roles.client, "the client")
        subjects = None if roles.subject is None else table.column(roles.subject, "the subject")
        indices = [table.header.index(name) for name in columns]
        cells = table.numbers(indices) if schema is None and not as_text else table.texts(indices)
        for row, (owner, label) in enumerate(zip(owners, labels, strict=True)):
            own = clients.setdefault(owner, RawRows())
            own.cells.append(cells[row])
            own.labels.append(label)
            own.places.append(table.place(row))
            if subjects is not None:
                own.subjects.append(subjects[row])
    return columns or (), clients


def _labels(table: CsvTable, roles: Roles) -> Sequence[Label]:
    """The label of every row as text; for survival the number that :class:`Survival` makes of days and event."""
    if roles.event is None:
        return table.column(roles.label, "the label")
    times, events = table.column(roles.label, "the time"), table.column(roles.event, "the event")
    days = [parse_whole(text) for text in times]
    seen = [EVENTS.get(text.casefold(), parse_whole(text)) for text in events]
    for row, (day, event) in enumerate(zip(days, seen, strict=True)):
        if day is None or not 0 <= day <= MOST_DAYS:
            remedy = "give whole days from 0 up (of years, times 365)"
            raise FeddrmError(f"{table.place(row)}: column '{roles.label}' is {quoted(times[row])}: {remedy}")
        if event not in (0, 1):
            remedy = "give 1 if the event was seen, else 0"
            raise FeddrmError(f"{table.place(row)}: column '{roles.event}' is {quoted(events[row])}: {remedy}")
    return Survival.labels(np.array(days), np.array(seen)).tolist()


def encoded(clients: RowsByClient, schema: TableSchema | None) -> SamplesByClient:
    """The samples of every client. A schema encodes the rows, and refuses values outside of its ranges."""
    return {
        client: LabelledSamples(
            _inputs(rows.cells, schema, rows.places), rows.labels, rows.places.__getitem__, rows.subjects or None
        )
        for client, rows in clients.items()
    }


def _inputs(rows: Sequence[Sequence[Any]], schema: TableSchema | None, places: Sequence[str]) -> NDArray[np.float32]:
    """Network inputs of training rows: numbers as they are, or cells as the schema encodes them."""
    if schema is None:
        return np.array(rows, dtype=np.float32)
    inputs = schema.encode(schema.read(rows, places.__getitem__))
    if problems := schema.problems(inputs):
        raise FeddrmError(f"{TableError(problems, places.__getitem__)}: correct it, or change the range in the schema")
    return inputs


def _check_roles(tables: Sequence[CsvTable], roles: Roles) -> None:
    names = {
        "label" if roles.event is None else "time": roles.label,
        "client": roles.client,
        "event": roles.event,
        "subject": roles.subject,
    }
    for (role, name), (other, same) in combinations(names.items(), 2):
        if name is not None and name == same:
            raise FeddrmError(f"{role} and {other} are both column '{name}': they must be two columns")
    present = sorted({name for table in tables for name in table.header})
    for name in roles.drop:
        if own := [role for role, taken in names.items() if taken == name]:
            raise FeddrmError(f"column '{name}' is the {own[0]}: take it out of drop")
        if name not in present:
            remedy = "write several as a list, [a, b]" if "," in name else "take it out of drop"
            raise FeddrmError(f"{tables[0].path} has no column '{name}' to drop{nearest(name, present)}: {remedy}")


def _feature_columns(table: CsvTable, roles: Roles, wanted: tuple[str, ...] | None, lacking: str) -> tuple[str, ...]:
    others = {roles.label, roles.client, roles.event, roles.subject, *roles.drop}
    present = tuple(name for name in table.header if name not in others)
    if not present:
        raise FeddrmError(f"{table.path} has no columns left to learn from: keep at least one")
    if wanted is None:
        return present
    for name in wanted:
        if name not in present:
            raise FeddrmError(
                f"{table.path} has no column '{name}'{nearest(name, present)}: add it, or drop=['{name}']"
            )
    for name in present:
        if name not in wanted:
            raise FeddrmError(f"{table.path} has a column '{name}' {lacking}: remove it, or drop=['{name}']")
    return wanted
