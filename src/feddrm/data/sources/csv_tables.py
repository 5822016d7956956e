"""Samples from CSV tables. Every error names the file, the row, the column and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.data.client import check_client_names
from feddrm.data.sources.csv_file import PARQUET, CsvTable, read_table
from feddrm.data.sources.labelled_samples import (
    Division,
    FederationParts,
    Label,
    LabelledSamples,
    assemble,
    check_same_clients,
    nfc,
    short_repr,
)
from feddrm.data.tables.table_schema import TableSchema
from feddrm.errors import FeddrmError, TableError
from feddrm.io.text import parse_float
from feddrm.registry import nearest

Paths = str | Path | Sequence[str | Path] | Mapping[str, str | Path]
SamplesByClient = Mapping[str, LabelledSamples]

TABLES = (".csv", PARQUET)
WHOLE_NUMBER = re.compile(r"([+-]?\d+)(\.0*)?")


@dataclass(frozen=True, eq=False)
class CsvSource:
    """CSV files with a header, or Parquet files: one file per client, or files with a ``client`` column.

    ``paths`` is a file, several files, a folder of them, or ``{client: file}``. Without such names
    and without a ``client`` column, a client has the name of its file. ``test`` has the same form and
    the same clients. All columns except ``label``, ``client`` and those in ``drop`` must hold numbers,
    and no number may be missing. With a ``schema`` (a file or a :class:`TableSchema`) they are the schema's
    columns, which it encodes. If all labels are whole numbers, they are read as numbers (1 and 1.0 are one
    class).
    """

    paths: Paths
    _: KW_ONLY
    label: str
    client: str | None = None
    test: Paths | None = None
    drop: Sequence[str] = ()
    schema: str | Path | TableSchema | None = None
    test_fraction: float = 0.3
    seed: int = 2025
    name: str | None = None

    def load(self) -> FederationParts:
        files = _table_files(self.paths)
        first = files[0][1].resolve()
        name = self.name or (first.stem if len(files) == 1 else first.parent.name) or "own"
        division = Division.checked(name, self.test_fraction, self.seed)
        if self.client is None and len(files) == 1:
            raise FeddrmError(f"{files[0][1]} is the only file: name its client column with client=..., or add files")
        if self.client is None:
            check_client_names(name, [stem for stem, _ in files])
        drop = (self.drop,) if isinstance(self.drop, str) else tuple(self.drop)
        train: SamplesByClient
        test: SamplesByClient | None = None
        schema = TableSchema.load(self.schema) if isinstance(self.schema, str | Path) else self.schema
        roles = Roles(self.label, self.client, drop)
        columns, train = read_samples(files, roles, schema)
        if self.test is not None:
            test_files = _table_files(self.test)
            if self.client is None:
                check_same_clients(name, train, [stem for stem, _ in test_files])
            # The test files may lack the columns to drop.
            _, test = read_samples(test_files, roles, schema, columns)
        train, test = labels_as_integers(train, test)
        clients, classes = assemble(name, train, test, division)
        settings = {"label": self.label, "client": self.client, "drop": list(drop)}
        settings |= division.settings(test_given=test is not None)
        source = ", ".join(str(path) for _, path in files)
        encoded = columns if schema is None else schema.encoded
        return FederationParts(name, clients, classes, source, settings, encoded, schema)


@dataclass(frozen=True)
class Roles:
    """The columns of a table that are no inputs: the label, the client, and those to drop."""

    label: str
    client: str | None = None
    drop: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", nfc(self.label))
        object.__setattr__(self, "client", self.client and nfc(self.client))
        object.__setattr__(self, "drop", tuple(map(nfc, self.drop)))


def _table_files(paths: Paths) -> list[tuple[str, Path]]:
    """(client, file) pairs; the client is the mapping's key or the file's stem. A folder means its tables."""
    if isinstance(paths, Mapping):
        return [(str(name), Path(path)) for name, path in paths.items()]
    if isinstance(paths, str | Path):
        folder = Path(paths)
        if not folder.exists():
            raise FeddrmError(f"{folder} does not exist: give the path of a .csv file, or of a folder of them")
        if not folder.is_dir():
            return [(folder.stem, folder)]
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() in TABLES and not p.name.startswith("."))
        if not files:
            raise FeddrmError(f"{folder} holds no .csv file: put one per client there, or give their paths")
        return [(p.stem, p) for p in files]
    files = [Path(p) for p in paths]
    if not files:
        raise FeddrmError("no files given: name one per client, or one with a client column")
    return [(p.stem, p) for p in files]


def read_samples(
    files: Sequence[tuple[str, Path]],
    roles: Roles,
    schema: TableSchema | None = None,
    columns: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], dict[str, LabelledSamples]]:
    """Names of the raw columns and the samples of every client, with labels as text.

    The clients are the files, or the values of the client column in order of appearance. The files may order their
    columns differently, but must have the same columns (those of ``schema`` or of ``columns``, if given). A schema
    encodes the rows, and refuses values outside of its ranges.
    """
    tables = [read_table(path) for _, path in files]
    if columns is None:
        _check_roles(tables, roles)
        columns = None if schema is None else schema.names
    lacking = "that others lack" if schema is None else "that the schema lacks"
    rows: dict[str, list[Sequence[Any]]] = {}
    labels: dict[str, list[Label]] = {}
    places: dict[str, list[str]] = {}
    for (stem, _), table in zip(files, tables, strict=True):
        columns = _feature_columns(table, roles, columns, lacking)
        table_labels = table.column(roles.label, "the label")
        if roles.client is None and stem in rows:
            raise FeddrmError(
                f"{table.path}: there is another file for client '{stem}': rename one, or give {{name: path}}"
            )
        owners = [stem] * len(table_labels) if roles.client is None else table.column(roles.client, "the client")
        indices = [table.header.index(name) for name in columns]
        for row, (owner, row_label) in enumerate(zip(owners, table_labels, strict=True)):
            rows.setdefault(owner, []).append(table.cells(row, indices, numbers=schema is None))
            labels.setdefault(owner, []).append(row_label)
            places.setdefault(owner, []).append(table.place(row))
    samples = {
        owner: LabelledSamples(_inputs(rows[owner], schema, places[owner]), labels[owner], places[owner].__getitem__)
        for owner in rows
    }
    return columns or (), samples


def _inputs(rows: Sequence[Sequence[Any]], schema: TableSchema | None, places: Sequence[str]) -> NDArray[np.float32]:
    """Network inputs of training rows: numbers as they are, or cells as the schema encodes them."""
    if schema is None:
        return np.array(rows, dtype=np.float32)
    inputs = schema.encode(schema.read(rows, places.__getitem__))
    if problems := schema.problems(inputs):
        raise FeddrmError(f"{TableError(problems, places.__getitem__)}: correct it, or change the range in the schema")
    return inputs


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
    indices = [table.column_index(name, "a query") for name in columns or present]
    numbers = [[table.number(row, index, can_drop=False) for index in indices] for row in range(len(table.rows))]
    return np.array(numbers, dtype=np.float32), [table.place(row) for row in range(len(numbers))]


def read_raw_rows(path: Path, schema: TableSchema, ignore: Sequence[str]) -> tuple[list[list[str]], list[str]] | None:
    """The cells of a schema's raw columns, and the place of each row; None if the file has the encoded columns."""
    table = read_table(path)
    present = [name for name in table.header if name not in set(map(nfc, ignore))]
    if schema.is_encoded(present):
        return None
    if unknown := [name for name in present if name not in schema.names]:
        raise FeddrmError(
            f"{path} has a column '{unknown[0]}' that the router does not know{nearest(unknown[0], schema.names)}: "
            f"leave it out, or --ignore '{unknown[0]}'"
        )
    indices = [table.column_index(name, "a query") for name in schema.names]
    rows = [table.cells(row, indices, numbers=False) for row in range(len(table.rows))]
    return rows, [table.place(row) for row in range(len(rows))]


def _check_roles(tables: Sequence[CsvTable], roles: Roles) -> None:
    label, client = roles.label, roles.client
    if label == client:
        raise FeddrmError(f"label and client are both column '{label}': they must be two columns")
    present = sorted({name for table in tables for name in table.header})
    for name in roles.drop:
        if name in {label, client}:
            raise FeddrmError(f"column '{name}' is needed as label or client: take it out of drop")
        if name not in present:
            remedy = "write several as a list, [a, b]" if "," in name else "take it out of drop"
            raise FeddrmError(f"{tables[0].path} has no column '{name}' to drop{nearest(name, present)}: {remedy}")


def _feature_columns(table: CsvTable, roles: Roles, wanted: tuple[str, ...] | None, lacking: str) -> tuple[str, ...]:
    present = tuple(name for name in table.header if name not in {roles.label, roles.client, *roles.drop})
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
    """Turn labels into integers if all labels are whole numbers, so that 0, 00 and 0.0 are one class.

    The conversion does not go through floats, which cannot tell codes of more than 15 digits (SNOMED CT)
    apart. A label with an exponent is a name: 1E50 is a disease in ICD-11.
    """
    for samples in [*train.values(), *(test or {}).values()]:
        for i, label in enumerate(samples.labels):
            value = parse_float(str(label))
            if value is not None and not (math.isfinite(value) and value.is_integer()):
                raise FeddrmError(
                    f"{samples.place(i)}: label {short_repr(label)} is a measurement, not a class: "
                    f"divide it into classes, whole numbers or names"
                )
    if not all(WHOLE_NUMBER.fullmatch(str(label)) for samples in train.values() for label in samples.labels):
        return train, test
    return _with_integers(train), None if test is None else _with_integers(test)


def _with_integers(clients: SamplesByClient) -> SamplesByClient:
    def convert(label: Label) -> Label:
        match = WHOLE_NUMBER.fullmatch(str(label))
        return int(match[1]) if match else label

    return {
        client: replace(samples, labels=[convert(label) for label in samples.labels])
        for client, samples in clients.items()
    }
