"""Samples from CSV tables. Every error names the file, the row, the column and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.data.sources.labelled_samples import (
    Division,
    FederationParts,
    Label,
    LabelledSamples,
    assemble,
    assemble_survival,
    check_same_clients,
    divide,
)
from feddrm.errors import FeddrmError, SettingError, TableError, quoted, short_list
from feddrm.io.run_files import check_client_names
from feddrm.io.text import nfc, parse_float, parse_whole
from feddrm.registry import nearest
from feddrm.tables.column_sums import ColumnSums, merge_sums, schema_from_sums, table_sums
from feddrm.tables.csv_file import PARQUET, CsvTable, DataFrame, frame_table, read_table
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import CLASSIFICATION, Survival, Task
from feddrm.tasks.survival import MOST_DAYS
from feddrm.typed_settings import typed_arguments

Paths = str | Path | Sequence[str | Path] | Mapping[str, str | Path | DataFrame] | DataFrame
SamplesByClient = Mapping[str, LabelledSamples]
RowsByClient = Mapping[str, "RawRows"]
NamedTable = tuple[str, CsvTable]

TABLES = (".csv", PARQUET)
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")
AUTO, FRAME = "auto", "data frame"
EVENTS = {"true": 1, "false": 0}  # in lower case, besides 1 and 0
INTERVALS = 10


@dataclass(frozen=True, eq=False)
class CsvSource:
    """CSV files with a header, or Parquet files: one file per client, or files with a ``client`` column.

    ``paths`` is a file, several files, a folder of them, or ``{client: file}``. Without such names
    and without a ``client`` column, a client has the name of its file. ``test`` has the same form and
    the same clients. All columns except ``label``, ``client`` and those in ``drop`` must hold numbers,
    and no number may be missing. With a ``schema`` (a file or a :class:`TableSchema`) they are the schema's
    columns, which it encodes. With ``schema="auto"`` the schema follows from sums over all clients: numbers
    are standardised by mean and deviation of the training rows, texts and the columns in ``categories`` are
    categories. If all labels are whole numbers, they are read as numbers (1 and 1.0 are one class).

    A data frame may stand for a file: ``{"oslo": frame, "lima": frame}``, or one frame with a client column.

    For survival, ``time`` and ``event`` stand in the place of ``label``: the columns of the days of follow-up, and of 1
    where the event was seen. ``edges`` are the last days of the intervals; without them there are ``intervals`` (10),
    by quantiles of the event times of all training rows.
    """

    paths: Paths
    _: KW_ONLY
    label: str = ""
    time: str = ""
    event: str = ""
    intervals: int | None = None
    edges: Sequence[int] = ()
    client: str | None = None
    test: Paths | None = None
    drop: str | Sequence[str] = ()
    schema: str | Path | TableSchema | None = None
    categories: str | Sequence[str] = ()
    test_fraction: float = 0.3
    seed: int = 2025
    name: str | None = None

    def load(self) -> FederationParts:
        check_outcome("csv", self.label, self.time, self.event, self.intervals, self.edges)
        tables = _tables(self.paths)
        name = self.name or _common_name(tables)
        division = Division.checked(name, self.test_fraction, self.seed)
        if self.client is None and len(tables) == 1:
            raise FeddrmError(
                f"{tables[0][1].path} is the only file: name its client column with client=..., or add files"
            )
        if self.client is None:
            check_client_names(name, [stem for stem, _ in tables])
        drop, categories = _names(self.drop), _names(self.categories)
        auto = self.schema == AUTO
        if categories and not auto:
            remedy = "describe them in the schema" if self.schema else f"give schema='{AUTO}', too"
            raise SettingError(f"{name}: categories={list(categories)} need schema='{AUTO}': {remedy}")
        schema = self.schema if isinstance(self.schema, TableSchema) else None
        if self.schema and not auto and schema is None:
            schema = TableSchema.load(str(self.schema))
        roles = Roles(self.label or self.time, self.client, drop, self.event or None)
        columns, train_rows = _rows_by_client(tables, roles, schema, auto)
        test_rows: RowsByClient = {}
        if self.test is not None:
            test_tables = _tables(self.test)
            if self.client is None:
                check_same_clients(name, train_rows, [stem for stem, _ in test_tables])
            # The test files may lack the columns to drop.
            _, test_rows = _rows_by_client(test_tables, roles, schema, auto, columns)
        if auto:
            schema = _schema_from_sums(name, columns, categories, train_rows, test_rows, division)
        train, test = _encoded(train_rows, schema), _encoded(test_rows, schema) or None
        task: Task = CLASSIFICATION
        if self.label:
            clients, classes = assemble(name, *labels_as_integers(train, test), division)
            settings: dict[str, Any] = {"label": self.label}
        else:
            clients = assemble_survival(name, train, test, division)
            pooled = torch.cat([client.train.y for client in clients])
            edges, intervals = tuple(self.edges), self.intervals or INTERVALS
            survival = Survival(edges) if edges else Survival.by_quantiles(pooled, intervals)
            task, classes, settings = survival, survival.names, {"time": self.time, "event": self.event}
        settings |= {"client": self.client, "drop": list(drop)}
        settings |= {"schema": AUTO, "categories": list(categories)} if auto else {}
        settings |= division.settings(test_given=test is not None)
        source = ", ".join(str(table.path) for _, table in tables)
        encoded = columns if schema is None else schema.encoded
        return FederationParts(name, clients, classes, source, settings, encoded, schema, task)


def check_outcome(
    where: str, label: str, time: str, event: str, intervals: int | None = None, edges: Sequence[int] = ()
) -> None:
    """Check that a table's outcome is a label, or a time with its event; intervals belong to the second."""
    if bool(label) == bool(time or event) or bool(time) != bool(event):
        raise SettingError(
            f"'{where}' needs to know which column to predict: give label (--set data.label=...), or for survival "
            f"time and event, the columns of days and of 1 where the event was seen"
        )
    if label and (intervals is not None or edges):
        raise SettingError(f"'{where}': intervals and edges are for survival: give time and event instead of label")
    if edges and intervals is not None:
        raise SettingError(f"'{where}': intervals={intervals} and edges={list(edges)}: give one of them")
    if edges:
        Survival(tuple(edges))
    elif intervals is not None and intervals < 2:
        raise SettingError(f"intervals={intervals}: give at least 2")


@dataclass(frozen=True)
class Roles:
    """The columns of a table that are no inputs: the label, the client, and those to drop.

    With an ``event``, the label is the time to it, or to the end of follow-up.
    """

    label: str
    client: str | None = None
    drop: Sequence[str] = ()
    event: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", nfc(self.label))
        object.__setattr__(self, "event", self.event and nfc(self.event))
        object.__setattr__(self, "client", self.client and nfc(self.client))
        object.__setattr__(self, "drop", tuple(map(nfc, self.drop)))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    """The names of columns; a text is one name, not its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


@typed_arguments
def _tables(paths: Paths) -> list[NamedTable]:
    """(client, table) pairs; the client is the mapping's key or the file's stem. A folder means its tables."""
    if isinstance(paths, DataFrame):
        return [(FRAME, frame_table(FRAME, paths))]
    if isinstance(paths, Mapping):
        return [
            (str(k), frame_table(f"{FRAME} '{k}'", v) if isinstance(v, DataFrame) else read_table(Path(v)))
            for k, v in paths.items()
        ]
    if isinstance(paths, str | Path):
        folder = Path(paths)
        if not folder.exists():
            raise FeddrmError(f"{folder} does not exist: give the path of a .csv file, or of a folder of them")
        if not folder.is_dir():
            return [(folder.stem, read_table(folder))]
        visible = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
        # To pass over a compressed table would lose a client without notice.
        if packed := next((p for p in visible if p.suffix.lower() in PACKED and Path(p.stem).suffix in TABLES), None):
            raise FeddrmError(f"{packed} is compressed: unpack it, or move it away")
        files = [p for p in visible if p.suffix.lower() in TABLES]
        if not files:
            raise FeddrmError(f"{folder} holds no .csv file: put one per client there, or give their paths")
    elif not (files := [Path(p) for p in paths]):
        raise FeddrmError("no files given: name one per client, or one with a client column")
    return [(p.stem, read_table(p)) for p in files]


def _common_name(tables: Sequence[NamedTable]) -> str:
    """The name of the only file, or of the folder of the first."""
    first = tables[0][1].path
    if not isinstance(first, Path):
        return "own"
    return (first.resolve().stem if len(tables) == 1 else first.resolve().parent.name) or "own"


def read_raw_table(path: Path, client: str, roles: Roles, schema: TableSchema | None, as_text: bool) -> RawTable:
    """One client's file. Without a schema its cells are numbers, unless ``as_text``: the schema follows then."""
    columns, rows = _rows_by_client([(client, read_table(path))], roles, schema, as_text)
    return RawTable(columns, rows[client])


@dataclass(frozen=True, eq=False)
class RawRows:
    """One client's rows as they are in the tables: numbers where there is no schema, text otherwise."""

    cells: list[Sequence[Any]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    places: list[str] = field(default_factory=list)


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
        return _encoded({"": rows}, schema)[""]


def _schema_from_sums(
    name: str,
    columns: tuple[str, ...],
    categories: Sequence[str],
    train: RowsByClient,
    test: RowsByClient,
    division: Division,
) -> TableSchema:
    """Mean and deviation are those of the training rows; every row tells its categories and gaps."""
    counted = {client: np.ones(len(rows.cells), dtype=bool) for client, rows in train.items()}
    if not test:
        sizes = {client: len(rows.cells) for client, rows in train.items()}
        for client, (_, rest) in divide(name, sizes, division).items():
            counted[client][rest] = False
    parts = {client: (rows, counted[client]) for client, rows in train.items()}
    parts |= {f"{client} (test)": (rows, np.zeros(len(rows.cells), dtype=bool)) for client, rows in test.items()}
    told = {client: RawTable(columns, rows).sums(used.tolist(), categories) for client, (rows, used) in parts.items()}
    return schema_from_sums(merge_sums(columns, told))


def _rows_by_client(
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
        indices = [table.header.index(name) for name in columns]
        cells = table.numbers(indices) if schema is None and not as_text else table.texts(indices)
        for row, (owner, label) in enumerate(zip(owners, labels, strict=True)):
            own = clients.setdefault(owner, RawRows())
            own.cells.append(cells[row])
            own.labels.append(label)
            own.places.append(table.place(row))
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


def _encoded(clients: RowsByClient, schema: TableSchema | None) -> SamplesByClient:
    """The samples of every client. A schema encodes the rows, and refuses values outside of its ranges."""
    return {
        client: LabelledSamples(_inputs(rows.cells, schema, rows.places), rows.labels, rows.places.__getitem__)
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
    names = {"label" if roles.event is None else "time": roles.label, "client": roles.client, "event": roles.event}
    for (role, name), (other, same) in combinations(names.items(), 2):
        if name is not None and name == same:
            raise FeddrmError(f"{role} and {other} are both column '{name}': they must be two columns")
    present = sorted({name for table in tables for name in table.header})
    for name in roles.drop:
        if name in names.values():
            raise FeddrmError(f"column '{name}' is needed as label or client: take it out of drop")
        if name not in present:
            remedy = "write several as a list, [a, b]" if "," in name else "take it out of drop"
            raise FeddrmError(f"{tables[0].path} has no column '{name}' to drop{nearest(name, present)}: {remedy}")


def _feature_columns(table: CsvTable, roles: Roles, wanted: tuple[str, ...] | None, lacking: str) -> tuple[str, ...]:
    present = tuple(name for name in table.header if name not in {roles.label, roles.client, roles.event, *roles.drop})
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


def labels_as_integers(
    train: SamplesByClient, test: SamplesByClient | None
) -> tuple[SamplesByClient, SamplesByClient | None]:
    """Turn labels into integers if all labels are whole numbers, so that 0, 00 and 0.0 are one class."""
    for samples in [*train.values(), *(test or {}).values()]:
        for i, label in enumerate(samples.labels):
            value = parse_float(str(label))
            if value is not None and not (math.isfinite(value) and value.is_integer()):
                raise FeddrmError(
                    f"{samples.place(i)}: label {quoted(label)} is a measurement, not a class: "
                    f"divide it into classes, whole numbers or names"
                )
    if any(parse_whole(str(label)) is None for samples in train.values() for label in samples.labels):
        return train, test
    return _with_integers(train), None if test is None else _with_integers(test)


def _with_integers(clients: SamplesByClient) -> SamplesByClient:
    def convert(label: Label) -> Label:
        number = parse_whole(str(label))
        return label if number is None else number

    return {
        client: replace(samples, labels=[convert(label) for label in samples.labels])
        for client, samples in clients.items()
    }
