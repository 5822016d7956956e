"""Fed-TCGA-BRCA: on files made here, and on the real ones where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from feddrm.data.datasets.base import load
from feddrm.data.datasets.tcga_brca import REGIONS
from feddrm.tasks import Survival
from refusal import refused

HEADER = "pid,age_at_index,stage,E,T"


def write(folder: Path, rows: list[str] | None = None) -> Path:
    """Three patients of each region; the third is for testing, and one patient is in no part."""
    folder.mkdir(parents=True, exist_ok=True)
    patients, split = ["TCGA-R0-none,50,0,0.0,3.0"], []
    for number in range(len(REGIONS)):
        for k in range(3):
            patients.append(f"TCGA-R{number}-{k},{60 + 15 * k},{k % 2},{float(k != 1)},{100.0 * k + number}")
            split.append(f"TCGA-R{number}-{k},{'test' if k == 2 else 'train'},x")
    (folder / "brca.csv").write_text("\n".join([HEADER, *(patients if rows is None else rows)]))
    centres = [f"R{number},Hospital,Land,,{region}" for number, region in enumerate(REGIONS)]
    (folder / "centers.csv").write_text("\n".join(["TSS Code,Source Site,Country,State,Region", *centres]))
    (folder / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *split]))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDDRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    return write(tmp_path / "tcga_brca")


def test_regions_split_and_labels(folder: Path) -> None:
    fed = load("tcga_brca", data_dir=str(folder), edges=[50, 250])
    assert fed.names == REGIONS
    assert fed.task == Survival((50, 250))
    assert fed.classes == ("0-50 days", "50-250 days")
    south = fed.clients[1]
    assert south.train.x.tolist() == [[0.0, 0.0], [1.0, 1.0]]  # (age - 60) / 15, and the other feature as it is
    assert torch.equal(south.train.y, Survival.labels(torch.tensor([1, 101]), torch.tensor([1, 0])))
    assert south.test.y.tolist() == [2 * 201 + 1]
    assert fed.counts().tolist() == [[1, 2]] * 6
    assert fed.describe()["task"] == {"name": "survival", "edges": [50, 250]}
    assert load("tcga_brca", data_dir=str(folder.parent), edges=[50, 250]).digest() == fed.digest()


def test_other_intervals_are_other_data(folder: Path) -> None:
    a, b = (load("tcga_brca", data_dir=str(folder), edges=edges) for edges in ([50, 250], [50, 260]))
    assert a.digest() != b.digest()


def test_quantiles_of_the_training_events(folder: Path) -> None:
    fed = load("tcga_brca", data_dir=str(folder), intervals=2)
    assert fed.task == Survival((3, 5))  # events of training are on the days 0 to 5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "brca.csv has a header but no rows: add some"),
        (["TCGA-R0-0,50,0,0.0,3.5"], "brca.csv, row 2: column 'T' is '3.5': give whole days from 0 up"),
        (["TCGA-R0-0,50,0,0.0,1" + "0" * 30], "brca.csv, row 2: column 'T' is '1000"),
        (["TCGA-R0-0,50,0,2,3"], "brca.csv, row 2: column 'E' is '2': give 1 if the event was seen, else 0"),
        (["TCGA-R0-0,old,0,0.0,3.0"], "column 'age_at_index'"),
        (["TCGA-R0-0,150,0,0.0,3.0"], "column 'age_at_index' is 150: outside 0..120 years"),
        (["TCGA-R0-0,50,0,0.0"], "row 2: 4 cells, but the header has 5"),
        (["TCGA-R9-0,50,0,0.0,3.0"], "patient 'TCGA-R0-0' has no row, region or part"),
    ],
)
def test_rows_that_cannot_be(folder: Path, rows: list[str], message: str) -> None:
    write(folder, rows)
    with refused(message, "or get FLamby's files"):
        load("tcga_brca", data_dir=str(folder), edges=[50, 250])


def test_a_missing_column_and_missing_files(folder: Path) -> None:
    (folder / "train_test_split.csv").write_text("pid,part\nTCGA-R0-0,train\n")
    with refused("train_test_split.csv has no column 'fold'"):
        load("tcga_brca", data_dir=str(folder))
    (folder / "centers.csv").unlink()
    with refused("no files of 'tcga_brca'"):
        load("tcga_brca", data_dir=str(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"intervals": 1}, "intervals=1: give at least 2"),
        ({"edges": [5]}, "edges=[5]: give the last days"),
        ({"edges": ["soon"]}, "edges=['soon']"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with refused(message):
        load("tcga_brca", **settings)


@pytest.mark.data
def test_the_real_files() -> None:
    if not (Path(os.environ.get("FEDDRM_DATA") or "nowhere") / "tcga_brca").exists():
        pytest.skip("FEDDRM_DATA has no Fed-TCGA-BRCA files")
    fed = load("tcga_brca")
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [
        (248, 63), (156, 40), (164, 42), (129, 33), (129, 33), (40, 11)
    ]  # fmt: skip
    assert [int((c.train.y % 2).sum()) for c in fed.clients] == [45, 35, 14, 16, 7, 2]
    assert fed.shape == (39,)
    assert len(fed.classes) == 10
