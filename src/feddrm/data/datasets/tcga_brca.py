"""Fed-TCGA-BRCA: the survival of breast cancer patients in six regions.

As FLamby defines it (Ogier du Terrail et al., NeurIPS 2022): the clinical data of The Cancer Genome Atlas, 39 features,
clients by the region of the hospital, FLamby's division into training and test samples. FLamby's repository has the
three files, in ``flamby/datasets/fed_tcga_brca``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from feddrm.data.client import Client, Split
from feddrm.data.datasets.base import FileDataset
from feddrm.data.federation import Federation
from feddrm.errors import FeddrmError, SettingError, TableError
from feddrm.io.data_files import obtain
from feddrm.io.official_files import alternatives
from feddrm.io.text import parse_float, read_csv
from feddrm.tables.column_kinds import NumberColumn
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import Survival

AGE, TIME, EVENT, PATIENT = "age_at_index", "T", "E", "pid"
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # in FLamby's order
REMEDY = "get FLamby's file"

Row = Mapping[str, str]


@dataclass(frozen=True)
class TcgaBrca(FileDataset):
    """Fed-TCGA-BRCA: survival of 1,088 breast cancer patients in six regions, 39 clinical features.

    Days are divided into ``intervals`` by quantiles of the event times of all training samples, pooled in this
    process, or by ``edges``, the last day of every interval. The division into training and test samples is FLamby's,
    whatever the seed.
    """

    name: ClassVar[str] = "tcga_brca"
    intervals: int = 10
    edges: tuple[int, ...] | None = None

    def check(self) -> None:
        super().check()
        if self.edges is not None:
            Survival(self.edges)
        elif self.intervals < 2:
            raise SettingError(f"intervals={self.intervals}: give at least 2")

    def load(self) -> Federation:
        paths = obtain(self.name, alternatives(self.name), (), data_dir=self.data_dir, download=False)
        patients, centres, split = (read_rows(path) for path in paths)
        by_id = {row[PATIENT]: row for row in patients}
        regions = {row["TSS Code"]: row["Region"] for row in centres}
        schema = schema_of(tuple(name for name in patients[0] if name not in (PATIENT, TIME, EVENT)))
        samples: dict[str, dict[str, list[Row]]] = {region: {"train": [], "test": []} for region in REGIONS}
        for row in split:
            patient = row[PATIENT]
            parts = samples.get(regions.get("".join(patient.split("-")[1:2]), ""), {})
            if patient not in by_id or row["fold"] not in parts:
                raise FeddrmError(f"{paths[2]}: patient '{patient}' has no row, region or part: {REMEDY}")
            parts[row["fold"]].append(by_id[patient])
        clients = tuple(
            Client(region, encode(parts["train"], schema, paths[0]), encode(parts["test"], schema, paths[0]))
            for region, parts in samples.items()
        )
        pooled = torch.cat([client.train.y for client in clients])
        task = Survival(self.edges) if self.edges else Survival.by_quantiles(pooled, self.intervals)
        return Federation(
            name=self.name,
            clients=clients,
            classes=task.names,
            source=f"Fed-TCGA-BRCA of FLamby, in {paths[0].parent}",
            columns=schema.encoded,
            schema=schema,
            settings=self.settings(),
            task=task,
        )


def schema_of(features: tuple[str, ...]) -> TableSchema:
    """The age by constants that all regions share; all other features are 0 or 1 and stay so."""
    age = NumberColumn(AGE, "Age", unit="years", centre=60, scale=15, minimum=0, maximum=120)
    return TableSchema(tuple(age if name == AGE else NumberColumn(name, minimum=0, maximum=1) for name in features))


def read_rows(path: Path) -> list[Row]:
    """The rows of a file by the names of its columns."""
    (_, header), *rows = read_csv(path, REMEDY) or [(1, [])]
    needed = {"brca.csv": {PATIENT, AGE, TIME, EVENT}, "centers.csv": {"TSS Code", "Region"}}
    if missing := needed.get(path.name, {PATIENT, "fold"}) - set(header):
        raise FeddrmError(f"{path} has no column '{min(missing)}': {REMEDY}")
    if not rows:
        raise FeddrmError(f"{path} has no rows: {REMEDY}")
    for line, cells in rows:
        if len(cells) != len(header):
            raise FeddrmError(f"{path}, row {line}: {len(cells)} cells for {len(header)} columns: {REMEDY}")
    return [dict(zip(header, cells, strict=True)) for _, cells in rows]


def encode(rows: list[Row], schema: TableSchema, path: Path) -> Split:
    """The samples and labels of some patients."""
    targets = []
    for row in rows:
        days, event = parse_float(row[TIME]), parse_float(row[EVENT])
        if days is None or not days >= 0 or not days.is_integer() or event not in (0, 1):
            where = f"{path}, patient '{row[PATIENT]}'"
            raise FeddrmError(f"{where}: T={row[TIME]}, E={row[EVENT]}: give whole days and 0 or 1, or {REMEDY}")
        targets.append((int(days), int(event)))
    try:
        values = schema.read(
            [[row[name] for name in schema.names] for row in rows], lambda i: f"{path}, patient '{rows[i][PATIENT]}'"
        )
    except TableError as error:
        raise FeddrmError(f"{error}: {REMEDY}") from error
    days_and_events = torch.from_numpy(np.array(targets, dtype=np.int64).reshape(-1, 2))
    return Split(torch.from_numpy(schema.encode(values)), Survival.labels(*days_and_events.T))
