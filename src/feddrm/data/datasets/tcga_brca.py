"""Fed-TCGA-BRCA: the survival of breast cancer patients in six regions.

As FLamby defines it (Ogier du Terrail et al., NeurIPS 2022): the clinical data of The Cancer Genome Atlas, 39 features,
clients by the region of the hospital, FLamby's division into training and test samples. FLamby's repository has the
three files, in ``flamby/datasets/fed_tcga_brca``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from feddrm.data.client import Client, Split
from feddrm.data.datasets.base import FileDataset
from feddrm.data.federation import Federation
from feddrm.data.sources.table_rows import Roles, read_raw_table
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.data_files import obtain
from feddrm.io.official_files import alternatives
from feddrm.tables.column_kinds import NumberColumn
from feddrm.tables.csv_file import read_table
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import Survival

AGE, TIME, EVENT, PATIENT = "age_at_index", "T", "E", "pid"
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # in FLamby's order


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
        try:
            clients, schema = read_clients(*paths)
        except FeddrmError as error:
            raise FeddrmError(f"{error}, or get FLamby's files") from error
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


def read_clients(patients: Path, centres: Path, split: Path) -> tuple[tuple[Client, ...], TableSchema]:
    """The regions from the tables of patients, of centres and of the division, and the schema of the features."""
    table = read_raw_table(patients, "brca", Roles(TIME, drop=(PATIENT,), event=EVENT), None, as_text=True)
    schema = schema_of(table.columns)
    samples = table.samples(schema)
    rows = {patient: row for row, patient in enumerate(read_table(patients).column(PATIENT, "the patient"))}
    places, division = read_table(centres), read_table(split)
    codes, names = places.column("TSS Code", "the centre"), places.column("Region", "the region")
    regions = dict(zip(codes, names, strict=True))
    parts: dict[str, dict[str, list[int]]] = {region: {"train": [], "test": []} for region in REGIONS}
    for patient, fold in zip(division.column(PATIENT, "the patient"), division.column("fold", "the part"), strict=True):
        own = parts.get(regions.get("".join(patient.split("-")[1:2]), ""), {})
        if patient not in rows or fold not in own:
            raise FeddrmError(f"{split}: patient '{patient}' has no row, region or part: correct it")
        own[fold].append(rows[patient])
    x, y = torch.from_numpy(samples.x), torch.tensor(samples.labels)
    clients = [
        Client(region, Split(x[own["train"]], y[own["train"]]), Split(x[own["test"]], y[own["test"]]))
        for region, own in parts.items()
    ]
    return tuple(clients), schema
