"""UCI Heart Disease: patients of four hospitals that measured different things.

Detrano et al., "International application of a new probability algorithm for the diagnosis of
coronary artery disease", Am. J. Cardiol. 64 (1989); the processed files, CC BY 4.0.

Whole columns are missing in some hospitals, and the missing values say much about the hospital of a
patient. Therefore every column that can be missing has an indicator column beside it. A cholesterol or
blood pressure of zero is impossible in a living patient. It means "not measured" (all of Switzerland's
cholesterol), and counts as missing.

``SCHEMA`` has the units and the categories of the files' documentation. Numbers are scaled by constants
that all hospitals share, not by statistics. No hospital learns anything about another, and a query can be
encoded before its origin is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.data.client import Client, Split
from feddrm.data.datasets.base import FileDataset
from feddrm.data.federation import Federation
from feddrm.data.partition import Indices, split
from feddrm.errors import FeddrmError, TableError
from feddrm.io.data_files import file_md5, obtain
from feddrm.io.official_files import HEART, HOSPITALS, alternatives
from feddrm.io.text import parse_float
from feddrm.registry import check_choice
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn, Values
from feddrm.tables.table_schema import TableSchema

CLASSES = ("healthy", "disease")
IMPUTE = ("client", "common")
NO_YES = {"0": "no", "1": "yes"}
SCHEMA = TableSchema(
    (
        NumberColumn("age", "Age", unit="years", centre=50, scale=10, minimum=0, maximum=120),
        CategoryColumn("sex", "Sex", categories={"0": "female", "1": "male"}),
        CategoryColumn(
            "cp",
            "Chest pain",
            categories={"1": "typical angina", "2": "atypical angina", "3": "non-anginal pain", "4": "asymptomatic"},
        ),
        NumberColumn(
            "trestbps", "Resting blood pressure", missing=True, unit="mm Hg", centre=130, scale=20,
            minimum=40, maximum=300, zero_is_missing=True,
        ),
        NumberColumn(
            "chol", "Serum cholesterol", missing=True, unit="mg/dl", centre=240, scale=50,
            minimum=40, maximum=700, zero_is_missing=True,
        ),
        CategoryColumn("fbs", "Fasting blood sugar above 120 mg/dl", missing=True, categories=NO_YES),
        CategoryColumn(
            "restecg",
            "Resting electrocardiogram",
            missing=True,
            categories={"0": "normal", "1": "ST-T wave abnormality", "2": "left ventricular hypertrophy"},
        ),
        NumberColumn(
            "thalach", "Maximum heart rate", missing=True, unit="beats/min", centre=140, scale=25,
            minimum=30, maximum=250,
        ),
        CategoryColumn("exang", "Exercise-induced angina", missing=True, categories=NO_YES),
        NumberColumn(
            "oldpeak", "ST depression by exercise", missing=True, unit="mm", centre=1, scale=1,
            minimum=-5, maximum=10,
        ),
        CategoryColumn(
            "slope",
            "Slope of the peak exercise ST segment",
            missing=True,
            categories={"1": "upsloping", "2": "flat", "3": "downsloping"},
        ),
        NumberColumn(
            "ca", "Major vessels coloured by fluoroscopy", missing=True, unit="vessels", centre=1, scale=1,
            minimum=0, maximum=4,
        ),
        CategoryColumn(
            "thal", "Thallium scan", missing=True,
            categories={"3": "normal", "6": "fixed defect", "7": "reversible defect"},
        ),
    )
)  # fmt: skip
ENCODED = SCHEMA.encoded


@dataclass(frozen=True)
class Heart(FileDataset):
    """UCI Heart Disease: 920 patients of four hospitals, 13 measurements, many missing.

    ``impute="client"`` fills missing values from the hospital's own training samples. ``"common"`` uses
    the centre of the scale for all hospitals. The first suits a model that a hospital applies to its own
    patients. Its imputed values differ between hospitals, so only the second can encode a query of
    unknown origin: ``route``, ``query`` and the gateway encode missing values by the second in any case.
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
            schema=SCHEMA.with_filled(self.impute == "client"),
            settings=self.settings(),
        )

    def _files(self) -> list[Path]:
        paths = obtain(self.name, alternatives(self.name), HEART, data_dir=self.data_dir, download=self.download)
        for path, remote in zip(paths, HEART, strict=True):
            if (md5 := file_md5(path)) != remote.md5:
                raise FeddrmError(
                    f"{path} has md5 {md5}, the official file {remote.md5}: replace it by {remote.url}, "
                    f"or remove it and allow the download with --download"
                )
        return paths


def read(path: Path) -> tuple[Values, NDArray[np.int64]]:
    """The 13 measurements of every patient as the schema reads them, and the labels: 1 for any degree of disease."""
    lines = [text.split(",") for text in path.read_text("ascii", errors="replace").splitlines()]
    labels = []
    for number, cells in enumerate(lines, start=1):
        label = parse_float(cells[-1]) if len(cells) == len(SCHEMA.columns) + 1 else None
        if label is None or not label >= 0:
            raise FeddrmError(f"{path}, row {number}: not 13 measurements and a label: get the official file")
        labels.append(label > 0)
    try:
        values = SCHEMA.read([cells[:-1] for cells in lines], lambda row: f"{path}, row {row + 1}")
    except TableError as error:
        raise FeddrmError(f"{error}: get the official file") from error
    return values, np.array(labels, dtype=np.int64)


def fit_imputation(values: Values) -> Values:
    """The value that replaces missing values of each column: the median, or the most frequent category.

    Of equally frequent categories, it is the first. It is NaN if the whole column is missing.
    """
    fill = np.full(len(SCHEMA.columns), np.nan)
    for j, column in enumerate(SCHEMA.columns):
        known = values[:, j][~np.isnan(values[:, j])]
        if len(known):
            fill[j] = np.bincount(known.astype(int)).argmax() if column.kind == "category" else np.median(known)
    return fill


def _split(values: Values, labels: NDArray[np.int64], part: Indices, fill: Values | None) -> Split:
    return Split(torch.from_numpy(SCHEMA.encode(values[part], fill)), torch.from_numpy(labels[part]))
