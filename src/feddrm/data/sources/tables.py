"""Reading comma-separated tables: numbers in, or one line that names file, row, column and remedy."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddrm.data.sources.labelled_samples import Label, Samples, composed, listed, shown
from feddrm.errors import FeddrmError
from feddrm.registry import nearest

Paths = str | Path | Sequence[str | Path] | Mapping[str, str | Path]

WHOLE = re.compile(r"([+-]?\d+)(\.0*)?")
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # compared in lower case


@dataclass(frozen=True)
class Table:
    """A file as text: rows of cells, and the line of the file on which each row begins."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def place(self, row: int) -> str:
        return f"{self.path}, row {self.lines[row]}"

    def column(self, name: str, purpose: str) -> int:
        """Where the column stands; the nearest name is suggested where it is missing."""
        if name not in self.header:
            raise FeddrmError(
                f"{self.path} has no column '{name}' for {purpose}{nearest(name, self.header)}: "
                f"give one of {listed(self.header)}"
            )
        return self.header.index(name)

    def cells(self, name: str, purpose: str) -> list[str]:
        """The column's text; an empty cell is refused."""
        at = self.column(name, purpose)
        for row, cells in enumerate(self.rows):
            if cells[at].lower() in MISSING:
                raise FeddrmError(
                    f"{self.place(row)}: no value for {purpose} (column '{name}' is {shown(cells[at])}): "
                    f"fill it in, remove the row, or rename what is really called so"
                )
            if not cells[at].isprintable():
                raise FeddrmError(f"{self.place(row)}: column '{name}' is {shown(cells[at])}: check the quotes there")
        return [cells[at] for cells in self.rows]


def table_files(paths: Paths) -> list[tuple[str, Path]]:
    """(client, file) pairs: named by the mapping's keys or by the files' stems; a folder stands for its .csv files."""
    if isinstance(paths, Mapping):
        return [(str(name), Path(path)) for name, path in paths.items()]
    if isinstance(paths, str | Path):
        folder = Path(paths)
        if not folder.exists():
            raise FeddrmError(f"{folder} does not exist: give the path of a .csv file, or of a folder of them")
        if not folder.is_dir():
            return [(folder.stem, folder)]
        inside = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".csv" and not p.name.startswith("."))
        if not inside:
            raise FeddrmError(f"{folder} holds no .csv file: put one per client there, or give their paths")
        return [(p.stem, p) for p in inside]
    files = [Path(p) for p in paths]
    if not files:
        raise FeddrmError("no files given: name one per client, or one with a client column")
    return [(p.stem, p) for p in files]


def read_table(path: Path) -> Table:
    """Read a UTF-8 file with a header (a byte order mark is tolerated); blank lines do not count as rows."""
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    rows.append(tuple(composed(cell.strip()) for cell in cells))
                    lines.append(line)
                line = reader.line_num + 1  # a quoted cell may span lines: the row begins on the first
    except UnicodeDecodeError as error:
        raise FeddrmError(f"{path} is not UTF-8 text (byte {error.start}): save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise FeddrmError(f"{path}, row {line}: not valid CSV ({error}): correct it there") from error
    except FileNotFoundError as error:
        raise FeddrmError(f"{path} does not exist: give the path of a .csv file") from error
    except OSError as error:
        raise FeddrmError(f"{path} cannot be read ({error.strerror}): give a readable .csv file") from error
    if not rows:
        raise FeddrmError(f"{path} is empty: it needs a header and rows, or leave it out")
    _check_header(path, rows[0])
    table = Table(path, rows[0], tuple(rows[1:]), tuple(lines[1:]))
    for row, width in enumerate(len(row) for row in table.rows):
        if width != len(table.header):
            raise FeddrmError(
                f"{table.place(row)}: {width} cells, but the header has {len(table.header)}: "
                f"complete the row, and quote cells that contain commas"
            )
    if not table.rows:
        raise FeddrmError(f"{path} has a header but no rows: add some, or leave it out")
    return table


def _check_header(path: Path, header: Sequence[str]) -> None:
    if len(header) == 1 and (other := next((s for s in ";\t|" if s in header[0]), None)):
        raise FeddrmError(f"{path} seems to be separated by {other!r}: save it with commas")
    for at, name in enumerate(header):
        if not name:
            raise FeddrmError(
                f"{path}: column {at + 1} has no name: name it in the header "
                f"(or save without row numbers: index=False in pandas)"
            )
        if not name.isprintable():
            raise FeddrmError(f"{path}: column {at + 1} is called {shown(name)}: check the quotes in the header")
        if name in header[:at]:
            raise FeddrmError(f"{path}: column '{name}' stands twice in the header: rename or remove one")


def read_samples(
    files: Sequence[tuple[str, Path]],
    *,
    label: str,
    client: str | None,
    drop: Collection[str],
    columns: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], dict[str, Samples]]:
    """Column names and the samples of every client, labels still as text.

    Clients are the files, or the values of the ``client`` column in order of appearance. Files may
    order their columns differently, but must have the same ones (those of ``columns``, if given).
    """
    tables = [read_table(path) for _, path in files]
    label, client, drop = composed(label), client and composed(client), [composed(name) for name in drop]
    if columns is None:
        _check_roles(tables, label, client, drop)
    numbers: dict[str, list[list[float]]] = {}
    labels: dict[str, list[Label]] = {}
    places: dict[str, list[str]] = {}
    for (stem, _), table in zip(files, tables, strict=True):
        columns = _columns(table, {label, client, *drop}, columns)
        answers = table.cells(label, "the label")
        if client is None and stem in numbers:
            raise FeddrmError(
                f"{table.path}: there is another file for client '{stem}': rename one, or give {{name: path}}"
            )
        owners = [stem] * len(answers) if client is None else table.cells(client, "the client")
        at = [table.header.index(name) for name in columns]
        for row, (owner, answer) in enumerate(zip(owners, answers, strict=True)):
            numbers.setdefault(owner, []).append([_number(table, row, column) for column in at])
            labels.setdefault(owner, []).append(answer)
            places.setdefault(owner, []).append(table.place(row))
    out = {
        owner: Samples(np.array(numbers[owner], dtype=np.float32), labels[owner], places[owner].__getitem__)
        for owner in numbers
    }
    return columns or (), out


def read_rows(path: Path, columns: tuple[str, ...] | None, width: int) -> tuple[NDArray[np.float32], list[str]]:
    """Rows without labels and their places; columns as named, or the file's own, of which there must be ``width``."""
    table = read_table(path)
    if columns is None and len(table.header) != width:
        raise FeddrmError(f"{path} has {len(table.header)} columns, {width} are wanted: give the columns of training")
    at = [table.column(name, "a query") for name in columns or table.header]
    rows = [[_number(table, row, column, drop=False) for column in at] for row in range(len(table.rows))]
    return np.array(rows, dtype=np.float32), [table.place(row) for row in range(len(rows))]


def _check_roles(tables: Sequence[Table], label: str, client: str | None, drop: Collection[str]) -> None:
    if label == client:
        raise FeddrmError(f"label and client are both column '{label}': they must be two columns")
    present = sorted({name for table in tables for name in table.header})
    for name in drop:
        if name in {label, client}:
            raise FeddrmError(f"column '{name}' is needed as label or client: take it out of drop")
        if name not in present:
            remedy = "write several as a list, [a, b]" if "," in name else "take it out of drop"
            raise FeddrmError(f"{tables[0].path} has no column '{name}' to drop{nearest(name, present)}: {remedy}")


def _columns(table: Table, other: Collection[str | None], wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    mine = tuple(name for name in table.header if name not in other)
    if not mine:
        raise FeddrmError(f"{table.path} has no columns left to learn from: keep at least one")
    if wanted is None:
        return mine
    for name in wanted:
        if name not in mine:
            raise FeddrmError(f"{table.path} has no column '{name}'{nearest(name, mine)}: add it, or drop=['{name}']")
    for name in mine:
        if name not in wanted:
            raise FeddrmError(f"{table.path} has a column '{name}' that others lack: remove it, or drop=['{name}']")
    return wanted


def _number(table: Table, row: int, column: int, *, drop: bool = True) -> float:
    text, name = table.rows[row][column], table.header[column]
    otherwise = f", or drop=['{name}']" if drop else ""
    if text.lower() in MISSING:
        raise FeddrmError(f"{table.place(row)}: column '{name}' has no value ({shown(text)}): fill it in{otherwise}")
    value = _float(text)
    if value is None:
        raise FeddrmError(
            f"{table.place(row)}: column '{name}' is {shown(text)}, not a number: encode it as numbers{otherwise}"
        )
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise FeddrmError(
            f"{table.place(row)}: column '{name}' is {shown(text)}, not a finite 32-bit number: correct it{otherwise}"
        )
    return value


def _float(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # Python reads 1_000, other programs do not
    except ValueError:
        return None


def number_labels(train: Mapping[str, Samples], test: Mapping[str, Samples] | None) -> list[dict[str, Samples]]:
    """Labels that are whole numbers throughout become integers, so that 0, 00 and 0.0 are one class.

    Through text, not through floats, which tell codes of more than 15 digits (SNOMED CT) not apart. What
    has an exponent is a name: 1E50 is a disease in ICD-11.
    """
    for samples in [*train.values(), *(test or {}).values()]:
        for i, label in enumerate(samples.labels):
            value = _float(str(label))
            if value is not None and not (math.isfinite(value) and value.is_integer()):
                raise FeddrmError(
                    f"{samples.place(i)}: label {shown(label)} is a measurement, not a class: "
                    f"divide it into classes, whole numbers or names"
                )
    whole = all(WHOLE.fullmatch(str(label)) for samples in train.values() for label in samples.labels)

    def convert(label: Label) -> Label:
        found = WHOLE.fullmatch(str(label)) if whole else None
        return int(found[1]) if found else label

    return [
        {
            client: replace(samples, labels=[convert(label) for label in samples.labels])
            for client, samples in part.items()
        }
        for part in (train, test or {})
    ]
