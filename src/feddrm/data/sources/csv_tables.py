"""Samples from CSV tables. Every error names the file, the row, the column and the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddrm.data.client import Client
from feddrm.data.sources.labelled_samples import (
    Division,
    FederationParts,
    Label,
    assemble,
    assemble_survival,
    check_same_clients,
    divide,
)
from feddrm.data.sources.table_rows import (
    NamedTable,
    RawTable,
    Roles,
    RowsByClient,
    SamplesByClient,
    encoded,
    rows_by_client,
)
from feddrm.errors import FeddrmError, SettingError, quoted
from feddrm.io.run_files import check_client_names
from feddrm.io.text import parse_float, parse_whole
from feddrm.tables.column_sums import merge_sums, schema_from_sums
from feddrm.tables.csv_file import PARQUET, DataFrame, frame_table, read_table
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import CLASSIFICATION, Survival, Task
from feddrm.typed_settings import typed_arguments

Paths = str | Path | Sequence[str | Path] | Mapping[str, str | Path | DataFrame] | DataFrame

TABLES = (".csv", PARQUET)
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")
AUTO, FRAME = "auto", "data frame"
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

    ``subject`` is a column that says whom a row is of, such as a patient with several visits. It is no input. Within a
    client, all rows of a subject are for training or all are for testing, and none are divided among folds.

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
    subject: str | None = None
    test_fraction: float = 0.3
    seed: int = 2025
    name: str | None = None

    def load(self) -> FederationParts:
        check_outcome("csv", self.label, self.time, self.event, self.intervals, self.edges)
        tables = _tables(self.paths)
        name = self.name or _common_name(tables)
        division = Division.checked(name, self.test_fraction, self.seed)
        self._check_clients(name, tables)
        schema, drop, categories = self._schema(name), _names(self.drop), _names(self.categories)
        roles = Roles(self.label or self.time, self.client, drop, self.event or None, self.subject or None)
        columns, train_rows = rows_by_client(tables, roles, schema, self._auto)
        test_rows: RowsByClient = {}
        if self.test is not None:
            test_tables = _tables(self.test)
            if self.client is None:
                check_same_clients(name, train_rows, [stem for stem, _ in test_tables])
            # The test files may lack the columns to drop.
            _, test_rows = rows_by_client(test_tables, roles, schema, self._auto, columns)
        if self._auto:
            schema = _schema_from_sums(name, columns, categories, train_rows, test_rows, division)
        train, test = encoded(train_rows, schema), encoded(test_rows, schema) or None
        clients, classes, task = self._assembled(name, train, test, division)
        settings: dict[str, Any] = {"label": self.label} if self.label else {"time": self.time, "event": self.event}
        settings |= {"client": self.client, "drop": list(drop)} | ({"subject": self.subject} if self.subject else {})
        settings |= {"schema": AUTO, "categories": list(categories)} if self._auto else {}
        settings |= division.settings(test_given=test is not None)
        source = ", ".join(str(table.path) for _, table in tables)
        inputs = columns if schema is None else schema.encoded
        return FederationParts(name, clients, classes, source, settings, inputs, schema, task)

    @property
    def _auto(self) -> bool:
        return self.schema == AUTO

    def _check_clients(self, name: str, tables: Sequence[NamedTable]) -> None:
        if self.client is not None:
            return
        if len(tables) == 1:
            raise FeddrmError(
                f"{tables[0][1].path} is the only file: name its client column with client=..., or add files"
            )
        check_client_names(name, [stem for stem, _ in tables])

    def _schema(self, name: str) -> TableSchema | None:
        """The schema that is given; none yet if it follows from the rows."""
        if self._auto:
            return None
        if categories := _names(self.categories):
            remedy = "describe them in the schema" if self.schema else f"give schema='{AUTO}', too"
            raise SettingError(f"{name}: categories={list(categories)} need schema='{AUTO}': {remedy}")
        if isinstance(self.schema, TableSchema):
            return self.schema
        return TableSchema.load(str(self.schema)) if self.schema else None

    def _assembled(
        self, name: str, train: SamplesByClient, test: SamplesByClient | None, division: Division
    ) -> tuple[tuple[Client, ...], tuple[str, ...], Task]:
        """The clients, the classes and the task: classes of the label, or the intervals of survival."""
        if self.label:
            return *assemble(name, *labels_as_integers(train, test), division), CLASSIFICATION
        clients = assemble_survival(name, train, test, division)
        if self.edges:
            survival = Survival(tuple(self.edges))
        else:
            pooled = torch.cat([client.train.y for client in clients])
            survival = Survival.by_quantiles(pooled, self.intervals or INTERVALS)
        return clients, survival.names, survival


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
        subjects = {client: rows.subjects or None for client, rows in train.items()}
        for client, (_, rest) in divide(name, sizes, division, subjects).items():
            counted[client][rest] = False
    parts = {client: (rows, counted[client]) for client, rows in train.items()}
    parts |= {f"{client} (test)": (rows, np.zeros(len(rows.cells), dtype=bool)) for client, rows in test.items()}
    told = {client: RawTable(columns, rows).sums(used.tolist(), categories) for client, (rows, used) in parts.items()}
    return schema_from_sums(merge_sums(columns, told))


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
