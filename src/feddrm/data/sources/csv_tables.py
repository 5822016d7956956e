"""Samples from CSV tables. Every error names the file, the row, the column and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddrm.data.client import check_client_names
from feddrm.data.sources.labelled_samples import (
    Division,
    FederationParts,
    Label,
    LabelledSamples,
    assemble,
    check_same_clients,
    nfc,
    short_list,
    short_repr,
)
from feddrm.errors import FeddrmError
from feddrm.io.text import parse_float, read_csv
from feddrm.registry import nearest

Paths = str | Path | Sequence[str | Path] | Mapping[str, str | Path]
SamplesByClient = Mapping[str, LabelledSamples]

WHOLE_NUMBER = re.compile(r"([+-]?\d+)(\.0*)?")
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # compared in lower case
MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class CsvSource:
    """CSV files with a header: one file per client, or files with a ``client`` column.

    ``paths`` is a file, several files, a folder of .csv files, or ``{client: file}``. Without such names
    and without a ``client`` column, a client has the name of its file. ``test`` has the same form and
    the same clients. All columns except ``label``, ``client`` and those in ``drop`` must hold numbers,
    and no number may be missing. If all labels are whole numbers, they are read as numbers (1 and 1.0
    are one class).
    """

    paths: Paths
    _: KW_ONLY
    label: str
    client: str | None = None
    test: Paths | None = None
    drop: Sequence[str] = ()
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
        columns, train = read_samples(files, label=self.label, client=self.client, drop=drop)
        if self.test is not None:
            test_files = _table_files(self.test)
            if self.client is None:
                check_same_clients(name, train, [stem for stem, _ in test_files])
            # The test files may lack the columns to drop.
            _, test = read_samples(test_files, label=self.label, client=self.client, drop=drop, columns=columns)
        train, test = labels_as_integers(train, test)
        clients, classes = assemble(name, train, test, division)
        settings = {"label": self.label, "client": self.client, "drop": list(drop)}
        settings |= division.settings(test_given=test is not None)
        return FederationParts(name, clients, classes, ", ".join(str(path) for _, path in files), settings, columns)


@dataclass(frozen=True)
class CsvTable:
    """A file as text: rows of cells, and the line of the file on which each row begins."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def place(self, row: int) -> str:
        return f"{self.path}, row {self.lines[row]}"

    def column_index(self, name: str, purpose: str) -> int:
        if name not in self.header:
            raise FeddrmError(
                f"{self.path} has no column '{name}' for {purpose}{nearest(name, self.header)}: "
                f"give one of {short_list(self.header)}"
            )
        return self.header.index(name)

    def column(self, name: str, purpose: str) -> list[str]:
        """The column's text; a missing value is refused."""
        index = self.column_index(name, purpose)
        cells = [row[index] for row in self.rows]
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise FeddrmError(
                    f"{self.place(row)}: no value for {purpose} (column '{name}' is {short_repr(cell)}): "
                    f"fill it in, remove the row, or rename the value if it is a real name"
                )
            if not cell.isprintable():
                raise FeddrmError(f"{self.place(row)}: column '{name}' is {short_repr(cell)}: check the quotes there")
        return cells

    def number(self, row: int, index: int, *, can_drop: bool = True) -> float:
        """The number in a cell. ``can_drop`` says whether leaving the column out is a remedy."""
        text, name = self.rows[row][index], self.header[index]
        value = parse_float(text)
        if text.lower() in MISSING:
            problem, remedy = f"has no value ({short_repr(text)})", "fill it in"
        elif value is None:
            problem, remedy = f"is {short_repr(text)}, not a number", "encode it as numbers"
        elif not abs(value) <= MAX_FLOAT32:
            problem, remedy = f"is {short_repr(text)}, not a finite 32-bit number", "correct it"
        else:
            return value
        or_drop = f", or drop=['{name}']" if can_drop else ""
        raise FeddrmError(f"{self.place(row)}: column '{name}' {problem}: {remedy}{or_drop}")


def _table_files(paths: Paths) -> list[tuple[str, Path]]:
    """(client, file) pairs; the client is the mapping's key or the file's stem. A folder means its .csv files."""
    if isinstance(paths, Mapping):
        return [(str(name), Path(path)) for name, path in paths.items()]
    if isinstance(paths, str | Path):
        folder = Path(paths)
        if not folder.exists():
            raise FeddrmError(f"{folder} does not exist: give the path of a .csv file, or of a folder of them")
        if not folder.is_dir():
            return [(folder.stem, folder)]
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".csv" and not p.name.startswith("."))
        if not files:
            raise FeddrmError(f"{folder} holds no .csv file: put one per client there, or give their paths")
        return [(p.stem, p) for p in files]
    files = [Path(p) for p in paths]
    if not files:
        raise FeddrmError("no files given: name one per client, or one with a client column")
    return [(p.stem, p) for p in files]


def read_table(path: Path) -> CsvTable:
    """Read a UTF-8 file with a header row; a byte order mark is allowed, blank lines are not rows."""
    rows = [(line, tuple(map(nfc, cells))) for line, cells in read_csv(path, "give the path of a readable .csv file")]
    if not rows:
        raise FeddrmError(f"{path} is empty: it needs a header and rows, or leave it out")
    header = rows.pop(0)[1]
    _check_header(path, header)
    table = CsvTable(path, header, tuple(cells for _, cells in rows), tuple(line for line, _ in rows))
    for row, cells in enumerate(table.rows):
        if len(cells) != len(header):
            raise FeddrmError(
                f"{table.place(row)}: {len(cells)} cells, but the header has {len(header)}: "
                f"complete the row, and quote cells that contain commas"
            )
    if not rows:
        raise FeddrmError(f"{path} has a header but no rows: add some, or leave it out")
    return table


def _check_header(path: Path, header: Sequence[str]) -> None:
    if len(header) == 1 and (other := next((s for s in ";\t|" if s in header[0]), None)):
        raise FeddrmError(f"{path} seems to be separated by {other!r}: save it with commas")
    for i, name in enumerate(header):
        if not name:
            raise FeddrmError(
                f"{path}: column {i + 1} has no name: name it in the header "
                f"(or save without row numbers: index=False in pandas)"
            )
        if not name.isprintable():
            raise FeddrmError(f"{path}: column {i + 1} is called {short_repr(name)}: check the quotes in the header")
        if name in header[:i]:
            raise FeddrmError(f"{path}: column '{name}' appears twice in the header: rename or remove one")


def read_samples(
    files: Sequence[tuple[str, Path]],
    *,
    label: str,
    client: str | None,
    drop: Collection[str],
    columns: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], dict[str, LabelledSamples]]:
    """Column names and the samples of every client, with labels as text.

    The clients are the files, or the values of the ``client`` column in order of appearance. The files
    may order their columns differently, but must have the same columns (those of ``columns``, if given).
    """
    tables = [read_table(path) for _, path in files]
    label, client, drop = nfc(label), client and nfc(client), [nfc(name) for name in drop]
    if columns is None:
        _check_roles(tables, label, client, drop)
    rows: dict[str, list[list[float]]] = {}
    labels: dict[str, list[Label]] = {}
    places: dict[str, list[str]] = {}
    for (stem, _), table in zip(files, tables, strict=True):
        columns = _feature_columns(table, {label, client, *drop}, columns)
        table_labels = table.column(label, "the label")
        if client is None and stem in rows:
            raise FeddrmError(
                f"{table.path}: there is another file for client '{stem}': rename one, or give {{name: path}}"
            )
        owners = [stem] * len(table_labels) if client is None else table.column(client, "the client")
        indices = [table.header.index(name) for name in columns]
        for row, (owner, row_label) in enumerate(zip(owners, table_labels, strict=True)):
            rows.setdefault(owner, []).append([table.number(row, index) for index in indices])
            labels.setdefault(owner, []).append(row_label)
            places.setdefault(owner, []).append(table.place(row))
    samples = {
        owner: LabelledSamples(np.array(rows[owner], dtype=np.float32), labels[owner], places[owner].__getitem__)
        for owner in rows
    }
    return columns or (), samples


def read_rows(path: Path, columns: tuple[str, ...] | None, width: int) -> tuple[NDArray[np.float32], list[str]]:
    """Rows without labels, and the place of each; the file's own columns must be ``width`` if none are named."""
    table = read_table(path)
    if columns is None and len(table.header) != width:
        raise FeddrmError(f"{path} has {len(table.header)} columns, {width} are wanted: give the columns of training")
    indices = [table.column_index(name, "a query") for name in columns or table.header]
    rows = [[table.number(row, index, can_drop=False) for index in indices] for row in range(len(table.rows))]
    return np.array(rows, dtype=np.float32), [table.place(row) for row in range(len(rows))]


def _check_roles(tables: Sequence[CsvTable], label: str, client: str | None, drop: Collection[str]) -> None:
    if label == client:
        raise FeddrmError(f"label and client are both column '{label}': they must be two columns")
    present = sorted({name for table in tables for name in table.header})
    for name in drop:
        if name in {label, client}:
            raise FeddrmError(f"column '{name}' is needed as label or client: take it out of drop")
        if name not in present:
            remedy = "write several as a list, [a, b]" if "," in name else "take it out of drop"
            raise FeddrmError(f"{tables[0].path} has no column '{name}' to drop{nearest(name, present)}: {remedy}")


def _feature_columns(table: CsvTable, other: Collection[str | None], wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    present = tuple(name for name in table.header if name not in other)
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
            raise FeddrmError(f"{table.path} has a column '{name}' that others lack: remove it, or drop=['{name}']")
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
