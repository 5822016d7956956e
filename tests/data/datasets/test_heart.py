"""UCI Heart Disease: on files made here, and on the real ones where they are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrm.data.datasets import heart
from feddrm.data.datasets.base import load
from feddrm.data.datasets.heart import ENCODED, HOSPITALS, SCHEMA, Heart, fit_imputation
from feddrm.data.federation import Federation
from feddrm.data.partition import split
from feddrm.io.data_files import file_md5
from feddrm.io.official_files import HEART
from feddrm.tables.column_kinds import CategoryColumn
from refusal import refused

NAN = float("nan")
#        age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal
TYPICAL = [60, 1, 4, 150, 290, 0, 2, 165, 1, 2.0, 2, 3, 7]


def encode(rows: list[list[float]], fill: list[float] | None = None) -> np.ndarray:
    return SCHEMA.encode(SCHEMA.read(rows), None if fill is None else SCHEMA.read([fill])[0])


def imputed(rows: list[list[float]] | np.ndarray) -> dict[str, float]:
    return dict(zip(SCHEMA.names, fit_imputation(SCHEMA.read(rows)).tolist(), strict=True))


def patients(n: int, seed: int, gaps: float = 0.3) -> list[str]:
    """Rows as in the files, with '?' in the columns that can miss."""
    rng = np.random.RandomState(seed)
    rows = []
    for _ in range(n):
        cells = []
        for column in SCHEMA.columns:
            value = rng.choice(column.codes) if isinstance(column, CategoryColumn) else rng.randint(1, 250)
            cells.append("?" if column.missing and rng.rand() < gaps else str(value))
        rows.append(",".join([*cells, str(rng.randint(0, 5))]))
    return rows


def write(folder: Path, hospital: str, rows: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"processed.{hospital}.data").write_text("\n".join(rows) + "\n")


def accept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the files made here for the official ones."""
    remotes = tuple(replace(remote, md5=file_md5(folder / remote.filename)) for remote in HEART)
    monkeypatch.setattr(heart, "HEART", remotes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDDRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    for i, hospital in enumerate(HOSPITALS):
        write(tmp_path / "data", hospital, patients(20 + i, seed=i))
    accept(tmp_path / "data", monkeypatch)
    return tmp_path / "data"


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


# Encoding


def test_the_encoded_columns() -> None:
    assert len(ENCODED) == len(set(ENCODED)) == 32
    assert ENCODED[:7] == ("age", "sex", "cp_1", "cp_2", "cp_3", "cp_4", "trestbps")
    assert [name for name in ENCODED if name.endswith("_missing")] == [
        f"{name}_missing"
        for name in "trestbps chol fbs restecg thalach exang oldpeak slope ca thal".split()  # noqa: SIM905
    ]


def test_a_complete_row_is_encoded_as_computed_by_hand() -> None:
    got = dict(zip(ENCODED, encode([TYPICAL])[0].tolist(), strict=True))
    assert {name: value for name, value in got.items() if value != 0} == {
        "age": 1,
        "sex": 1,
        "cp_4": 1,
        "trestbps": 1,
        "chol": 1,
        "fbs": -1,
        "restecg_2": 1,
        "thalach": 1,
        "exang": 1,
        "oldpeak": 1,
        "slope_2": 1,
        "ca": 2,
        "thal_7": 1,
    }


def test_missing_values_are_filled_in_and_marked() -> None:
    gaps = [60, 1, 4, *[NAN] * 10]
    neutral = dict(zip(ENCODED, encode([gaps])[0].tolist(), strict=True))
    known = {name: value for name, value in neutral.items() if not name.endswith("_missing") and value != 0}
    assert known == {"age": 1, "sex": 1, "cp_4": 1}
    assert all(value == 1 for name, value in neutral.items() if name.endswith("_missing"))
    filled, complete = encode([gaps], fill=TYPICAL)[0], encode([TYPICAL])[0]
    assert filled[:22].tolist() == complete[:22].tolist()
    assert filled[22:].tolist() == [1] * 10


def test_zero_blood_pressure_and_cholesterol_are_missing() -> None:
    zeros = [*TYPICAL[:3], 0, 0, *TYPICAL[5:]]
    gaps = [*TYPICAL[:3], NAN, NAN, *TYPICAL[5:]]
    assert encode([zeros]).tolist() == encode([gaps]).tolist()
    fill = imputed([zeros, TYPICAL, zeros])
    assert (fill["trestbps"], fill["chol"]) == (150, 290)
    # A zero is a measurement elsewhere.
    assert imputed([[*TYPICAL[:9], 0, *TYPICAL[10:]]])["oldpeak"] == 0


def test_imputation_is_the_median_and_the_most_frequent_code() -> None:
    rows = np.array([TYPICAL] * 4, dtype=float)
    rows[:, 3] = [100, NAN, 130, 120]  # median 120
    rows[:, 4] = [200, 300, 400, 500]  # median 350
    rows[:, 6] = [2, 1, 1, 2]  # a tie: the smallest
    rows[:, 12] = [NAN, 7, 7, 3]
    rows[:, 11] = NAN  # nothing known
    values = SCHEMA.read(rows)
    before, fill = values.copy(), fit_imputation(values)
    assert fill[[3, 4]].tolist() == [120, 350]
    assert fill[[6, 12]].tolist() == [1, 2]  # the second and the third category: codes 1 and 7
    assert np.isnan(fill[11])
    encoded = dict(zip(ENCODED, SCHEMA.encode(values, fill)[0].tolist(), strict=True))
    assert np.array_equal(values, before, equal_nan=True)
    assert (encoded["ca"], encoded["ca_missing"], encoded["thal_7"], encoded["thal_missing"]) == (0, 1, 1, 1)


def test_a_wholly_missing_code_is_none_of_the_codes() -> None:
    rows = np.array([TYPICAL] * 2, dtype=float)
    rows[:, 10] = NAN
    values = SCHEMA.read(rows)
    got = dict(zip(ENCODED, SCHEMA.encode(values, fit_imputation(values))[0].tolist(), strict=True))
    assert [got[f"slope_{k}"] for k in (1, 2, 3)] == [0, 0, 0]
    assert got["slope_missing"] == 1


def test_impossible_measurements_are_refused() -> None:
    for at, value, word in (
        (0, NAN, "column 'age' is nan: a value is needed: give a number (0..120 years)"),
        (2, 5, "column 'cp' is 5: give one of 1 (typical angina), 2 (atypical angina), 3 (non-anginal pain), 4 ("),
        (1, NAN, "column 'sex' is nan: a value is needed: give one of 0 (female), 1 (male)"),
        (12, 4, "column 'thal' is 4: give one of 3 (normal), 6 (fixed defect), 7 (reversible defect), or unknown"),
        (4, float("inf"), "column 'chol' is inf: give a number (40..700 mg/dl), or unknown"),
    ):
        row = list(TYPICAL)
        row[at] = value
        with refused("row 1", word):
            encode([TYPICAL, row])


# Loading


def test_split_labels_and_source(folder: Path) -> None:
    fed = load("heart", data_dir=str(folder), seed=9)
    assert (fed.name, fed.names, fed.classes, fed.columns) == ("heart", HOSPITALS, ("healthy", "disease"), ENCODED)
    assert fed.settings == {"seed": 9, "impute": "client"}
    assert "CC BY 4.0" in fed.source
    parts = split([np.arange(20 + i) for i in range(4)], np.random.RandomState(9))
    for client, (first, rest) in zip(fed.clients, parts, strict=True):
        rows, labels = heart.read(folder / f"processed.{client.name}.data")
        fill = fit_imputation(rows[first])
        assert client.train.y.tolist() == labels[first].tolist()
        assert client.train.x.tolist() == SCHEMA.encode(rows[first], fill).tolist()
        assert client.test.x.tolist() == SCHEMA.encode(rows[rest], fill).tolist()
    num = [int(line.rsplit(",", 1)[1]) for line in (folder / "processed.va.data").read_text().splitlines()]
    assert fed.counts()[3].tolist() == [sum(k == 0 for k in num), sum(k > 0 for k in num)]


def test_common_imputation_uses_no_statistics(folder: Path) -> None:
    fed = load("heart", data_dir=str(folder), impute="common")
    rows, _ = heart.read(folder / "processed.va.data")
    (first, _) = split([np.arange(20 + i) for i in range(4)], np.random.RandomState(2025))[3]
    assert fed.clients[3].train.x.tolist() == SCHEMA.encode(rows[first]).tolist()
    assert (fed.schema, load("heart", data_dir=str(folder)).schema) == (SCHEMA, SCHEMA.with_filled(True))
    with refused("unknown impute 'clients'; did you mean 'client'?", "client, common"):
        load("heart", impute="clients")


def change(fed: Federation, folder: Path, monkeypatch: pytest.MonkeyPatch, *, test: bool) -> Federation:
    """Replace one training or test row of the second hospital by one with nothing missing."""
    name = HOSPITALS[1]
    lines = (folder / f"processed.{name}.data").read_text().splitlines()
    parts = split([np.arange(20 + i) for i in range(4)], np.random.RandomState(2025))
    lines[parts[1][1 if test else 0][0]] = ",".join(map(str, [*TYPICAL[:3], 249, 249, *TYPICAL[5:], 0]))
    write(folder, name, lines)
    accept(folder, monkeypatch)
    return load("heart", data_dir=str(folder))


def test_a_test_row_changes_nothing_but_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load("heart", data_dir=str(folder))
    after = change(before, folder, monkeypatch, test=True)
    for old, new in zip(before.clients, after.clients, strict=True):
        assert same(old.train.x, new.train.x)
        assert same(old.train.y, new.train.y)
    assert not same(before.clients[1].test.x, after.clients[1].test.x)
    # The other test rows, imputed values among them, stay as they were.
    assert same(before.clients[1].test.x[1:], after.clients[1].test.x[1:])


def test_a_training_row_changes_the_imputed_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load("heart", data_dir=str(folder))
    after = change(before, folder, monkeypatch, test=False)
    assert not same(before.clients[1].test.x, after.clients[1].test.x)
    for i in (0, 2, 3):  # but only in its own hospital
        assert same(before.clients[i].train.x, after.clients[i].train.x)
        assert same(before.clients[i].test.x, after.clients[i].test.x)


def test_files_in_a_sub_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(tmp_path / "heart")
    monkeypatch.setenv("FEDDRM_DATA", str(tmp_path))
    assert len(Heart().load()) == 4


def test_missing_files_are_named_with_the_remedy(folder: Path) -> None:
    (folder / "processed.va.data").unlink()
    with refused(
        "no files of 'heart'", str(folder), "processed.cleveland.data", "--download", "https://archive.ics.uci.edu"
    ):
        load("heart", data_dir=str(folder))


def test_other_files_under_the_same_name(folder: Path) -> None:
    path = folder / "processed.va.data"
    path.write_text(path.read_text().replace(",", ", ", 1))
    with refused(f"{path} has md5 {file_md5(path)}", "the official file", "replace it by https://", "--download"):
        load("heart", data_dir=str(folder))


@pytest.mark.parametrize("row", ["1,2,3", ",".join(["x"] * 14), ",".join(["1"] * 13 + ["?"])])
def test_a_row_of_another_form(folder: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    write(folder, "va", [*patients(3, 0), row])
    accept(folder, monkeypatch)
    with refused(f"{folder / 'processed.va.data'}, row 4", "get the official file"):
        load("heart", data_dir=str(folder))


# The real files


@pytest.fixture(scope="module")
def real() -> Federation:
    base = Path(os.environ.get("FEDDRM_DATA") or "nowhere")
    if not any((base / sub / "processed.va.data").exists() for sub in ("", "heart")):
        pytest.skip("FEDDRM_DATA has no UCI Heart Disease files")
    return load("heart")


@pytest.mark.slow
@pytest.mark.data
def test_real_counts(real: Federation) -> None:
    assert real.counts().tolist() == [[164, 139], [188, 106], [8, 115], [51, 149]]
    assert real.sizes.tolist() == [212, 205, 86, 140]
    assert real.shape == (32,)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("impute", "digest"),
    [
        ("client", "196cbc09b89de78c09e1d3149c444809516ef0a796c6d96a0c91be417ea5e3c2"),
        ("common", "acf3b951dbcf161c92b59acf6ecc69fffb01a67f8c51632cda54a8b6d7f6aca8"),
    ],
)
def test_the_real_rows_are_encoded_as_ever(real: Federation, impute: str, digest: str) -> None:
    assert load("heart", impute=impute).digest() == digest
    assert all(not SCHEMA.with_filled(True).problems(client.train.x) for client in real.clients)


@pytest.mark.slow
@pytest.mark.data
def test_real_missing_values(real: Federation) -> None:
    at = {name: i for i, name in enumerate(ENCODED)}
    for client in real.clients:
        x = torch.cat([client.train.x, client.test.x])
        assert x.isfinite().all()
        assert x.abs().max() < 10
        missing = {name: int(x[:, at[f"{name}_missing"]].sum()) for name in ("trestbps", "chol", "ca", "thal")}
        assert (
            missing
            == {
                "cleveland": {"trestbps": 0, "chol": 0, "ca": 4, "thal": 2},
                "hungarian": {"trestbps": 1, "chol": 23, "ca": 291, "thal": 266},
                "switzerland": {"trestbps": 2, "chol": 123, "ca": 118, "thal": 52},
                "va": {"trestbps": 57, "chol": 56, "ca": 198, "thal": 166},
            }[client.name]
        )
    swiss = real.clients[2]
    assert (torch.cat([swiss.train.x, swiss.test.x])[:, at["chol"]] == 0).all()
