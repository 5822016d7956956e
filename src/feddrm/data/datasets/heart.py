"""UCI Heart Disease: patients of four hospitals that measured different things.

Detrano et al., "International application of a new probability algorithm for the diagnosis of
coronary artery disease", Am. J. Cardiol. 64 (1989); the processed files, CC BY 4.0.

Whole columns are missing in some hospitals, and the missing values say much about the hospital of a
patient. Therefore every column that can be missing has an indicator column beside it. A cholesterol or
blood pressure of zero is impossible in a living patient. It means "not measured" (all of Switzerland's
cholesterol), and counts as missing.

Numbers are scaled by constants that all hospitals share, not by statistics. No hospital learns anything
about another, and a query can be encoded before its origin is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from feddrm.data.client import Client, Split
from feddrm.data.datasets.base import FileDataset
from feddrm.data.datasets.data_files import Remote, file_md5, obtain
from feddrm.data.federation import Federation
from feddrm.data.partition import Indices, split
from feddrm.errors import FeddrmError
from feddrm.registry import check_choice

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MD5 = (
    "2d91a8ff69cfd9616aa47b59d6f843db",
    "22e96bee155b5973568101c93b3705f6",
    "9a87f7577310b3917730d06ba9349e20",
    "4249d03ca7711e84f4444768c9426170",
)
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
CLASSES = ("healthy", "disease")
IMPUTE = ("client", "common")


@dataclass(frozen=True)
class Column:
    """A column of the files: a number with its centre and scale, or one of several ``codes``."""

    name: str
    centre: float = 0.0
    scale: float = 1.0
    codes: tuple[int, ...] = ()
    can_miss: bool = True
    zero_is_missing: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its encoded columns: one column, or one per code if there are more than two codes."""
        return tuple(f"{self.name}_{code}" for code in self.codes) if len(self.codes) > 2 else (self.name,)


COLUMNS = (
    Column("age", 50, 10, can_miss=False),
    Column("sex", 0.5, 0.5, codes=(0, 1), can_miss=False),
    Column("cp", codes=(1, 2, 3, 4), can_miss=False),
    Column("trestbps", 130, 20, zero_is_missing=True),
    Column("chol", 240, 50, zero_is_missing=True),
    Column("fbs", 0.5, 0.5, codes=(0, 1)),
    Column("restecg", codes=(0, 1, 2)),
    Column("thalach", 140, 25),
    Column("exang", 0.5, 0.5, codes=(0, 1)),
    Column("oldpeak", 1, 1),
    Column("slope", codes=(1, 2, 3)),
    Column("ca", 1, 1),
    Column("thal", codes=(3, 6, 7)),
)
ENCODED = (
    *(name for column in COLUMNS for name in column.outputs),
    *(f"{column.name}_missing" for column in COLUMNS if column.can_miss),
)

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Heart(FileDataset):
    """UCI Heart Disease: 920 patients of four hospitals, 13 measurements, many missing.

    ``impute="client"`` fills missing values from the hospital's own training samples. ``"common"`` uses
    the centre of the scale for all hospitals. The first suits a model that a hospital applies to its own
    patients. Its imputed values differ between hospitals, so only the second can encode a query of
    unknown origin.
    """

    name: ClassVar[str] = "heart"
    impute: str = "client"

    def check(self) -> None:
        super().check()
        check_choice("impute", self.impute, IMPUTE)

    def load(self) -> Federation:
        paths = self._files()
        hospitals = [read(path) for path in paths]
        parts = split([np.arange(len(labels)) for _, labels in hospitals], np.random.RandomState(self.seed))
        clients = []
        for name, (rows, labels), (first, rest) in zip(HOSPITALS, hospitals, parts, strict=True):
            fill = fit_imputation(rows[first]) if self.impute == "client" else None
            train, test = (_split(rows, labels, part, fill) for part in (first, rest))
            clients.append(Client(name, train=train, test=test))
        return Federation(
            name=self.name,
            clients=tuple(clients),
            classes=CLASSES,
            source=f"UCI Heart Disease, processed files (CC BY 4.0), in {paths[0].parent}",
            columns=ENCODED,
            settings=self.settings(),
        )

    def _files(self) -> list[Path]:
        remotes = [Remote(f"{URL}/processed.{h}.data", md5) for h, md5 in zip(HOSPITALS, MD5, strict=True)]
        names = [remote.filename for remote in remotes]
        places = [names, [f"heart/{name}" for name in names]]
        paths = obtain(self.name, places, remotes, data_dir=self.data_dir, download=self.download)
        for path, remote in zip(paths, remotes, strict=True):
            if (md5 := file_md5(path)) != remote.md5:
                raise FeddrmError(
                    f"{path} has md5 {md5}, the official file {remote.md5}: replace it by {remote.url}, "
                    f"or remove it and allow the download with --download"
                )
        return paths


def read(path: Path) -> tuple[Rows, NDArray[np.int64]]:
    """The 13 measurements of every patient (NaN where missing), and the labels: 1 for any degree of disease."""
    values = []
    for line, text in enumerate(path.read_text("ascii", errors="replace").splitlines(), start=1):
        cells = text.split(",")
        try:
            row = [float("nan") if cell.strip() == "?" else float(cell) for cell in cells]
        except ValueError as error:
            raise FeddrmError(f"{path}, row {line}: {error}: get the official file") from error
        if len(row) != len(COLUMNS) + 1 or not row[-1] >= 0:
            raise FeddrmError(f"{path}, row {line}: not 13 measurements and a label: get the official file")
        values.append(row)
    table = np.array(values, dtype=np.float64).reshape(-1, len(COLUMNS) + 1)
    return table[:, :-1], (table[:, -1] > 0).astype(np.int64)


def fit_imputation(rows: ArrayLike) -> Rows:
    """The value that replaces missing values of each column: the median, or the most frequent code.

    Of equally frequent codes, it is the smallest. It is NaN if the whole column is missing.
    """
    rows = _checked(rows)
    fill = np.full(len(COLUMNS), np.nan)
    for j, column in enumerate(COLUMNS):
        known = rows[:, j][~np.isnan(rows[:, j])]
        if len(known) and column.codes:
            fill[j] = column.codes[int(np.argmax([(known == code).sum() for code in column.codes]))]
        elif len(known):
            fill[j] = np.median(known)
    return fill


def encode(rows: ArrayLike, fill: ArrayLike | None = None) -> NDArray[np.float32]:
    """Network input, with the columns ``ENCODED``, from raw rows of 13 measurements (NaN where missing).

    Missing values are taken from ``fill`` (see :func:`fit_imputation`). Where it is NaN or None, they
    become zero, which means the centre of a number's scale, and none of the codes.
    """
    rows = _checked(rows)
    missing = np.isnan(rows)
    if fill is not None:
        rows = np.where(missing, np.asarray(fill, dtype=np.float64), rows)
    out = []
    for j, column in enumerate(COLUMNS):
        value = rows[:, j]
        if len(column.codes) > 2:
            out += [(value == code).astype(np.float64) for code in column.codes]
        else:
            out.append(np.nan_to_num((value - column.centre) / column.scale, nan=0.0))
    out += [missing[:, j].astype(np.float64) for j, column in enumerate(COLUMNS) if column.can_miss]
    return np.stack(out, axis=1).astype(np.float32)


def _checked(rows: ArrayLike) -> Rows:
    """A copy in which impossible zeros are NaN. Any other impossible value raises an error."""
    rows = np.array(rows, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(COLUMNS):
        raise FeddrmError(f"heart: rows of shape {rows.shape}: give [n, {len(COLUMNS)}], NaN where missing")
    for j, column in enumerate(COLUMNS):
        value = rows[:, j]
        if column.zero_is_missing:
            value[value == 0] = np.nan
        bad = np.isinf(value)
        if not column.can_miss:
            bad |= np.isnan(value)
        if column.codes:
            bad |= ~(np.isin(value, column.codes) | np.isnan(value))
        if bad.any():
            i = int(np.argmax(bad))
            allowed = f"one of {', '.join(map(str, column.codes))}" if column.codes else "a finite number"
            raise FeddrmError(f"heart: row {i} has {column.name}={value[i]:g}: it must be {allowed}")
    return rows


def _split(rows: Rows, labels: NDArray[np.int64], part: Indices, fill: Rows | None) -> Split:
    return Split(torch.from_numpy(encode(rows[part], fill)), torch.from_numpy(labels[part]))
