"""A site's own data: folders, tables, arrays, shares of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

from feddrm.data import Federation
from feddrm.deploy.site.site_dataset import read_site_dataset, sorted_classes
from feddrm.errors import FeddrmError
from refusal import refused


def test_arrays_are_split_and_numbered_by_the_federations_classes(tmp_path: Path) -> None:
    x, y = np.arange(80, dtype=np.float32).reshape(20, 4), np.array([3, 5] * 10)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    dataset = read_site_dataset("oslo", {"npz": "own.npz", "test_fraction": 0.25}, tmp_path)
    assert dataset.classes == ("3", "5")
    client = dataset.client(("1", "3", "5"))
    assert (len(client.train), len(client.test)) == (15, 5)
    both = torch.cat([client.train.x, client.test.x])
    assert sorted(both[:, 0].tolist()) == x[:, 0].tolist()
    assert set(client.train.y.tolist()) == {1, 2}


def test_a_site_may_have_samples_of_one_class_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((10, 2)), y=np.full(10, "ill"))
    client = read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path).client(("ill", "well"))
    assert client.train.y.tolist() == [0] * 7


def test_a_folder_of_images_is_read_at_the_given_size(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (9, 9), (i, 20, 30)).save(tmp_path / "data" / label / f"{i}.png")
    client = read_site_dataset("oslo", {"folder": "data", "size": 8}, tmp_path).client(("cat", "dog"))
    assert client.train.x.shape == (5, 3, 8, 8)
    assert client.train.x.dtype == torch.uint8


def test_samples_of_a_subject_are_not_divided(tmp_path: Path) -> None:
    """In every kind of data; the subjects are no input, and nothing but the division depends on them."""
    whose = [f"p{i // 4}" for i in range(20)]
    np.savez(tmp_path / "own.npz", x=np.eye(20), y=np.arange(20) % 2, subject=whose)
    rows = {"age": np.arange(20), "ill": np.arange(20) % 2, "patient": whose}
    pd.DataFrame(rows).to_csv(tmp_path / "visits.csv", index=False)
    for i, who in enumerate(whose):
        path = tmp_path / "scans" / "ab"[i % 2] / f"{who}_{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 3), i).save(path)
    table = {"csv": "visits.csv", "label": "ill", "subject": "patient"}
    for data in ({"npz": "own.npz"}, table, {**table, "schema": "auto"}, {"folder": "scans", "subject": "p[0-9]+"}):
        dataset = read_site_dataset("oslo", data, tmp_path)
        client = dataset.client(dataset.classes)
        assert client.train.subject is not None
        assert (client.train.subjects, client.test.subjects) == (3, 2), data
        if dataset.table is not None:
            assert dataset.columns == ("age",)
            assert dataset.sums is not None
            assert dataset.sums["age"].count == len(client.train) == 12


def test_labels_that_name_single_subjects_stay_at_the_site(tmp_path: Path) -> None:
    """A patient's number repeats with every visit. Exercises that every patient does are classes, however many."""
    whose = [f"p{i // 12}" for i in range(144)]

    def read(labels: list[str], subject: bool) -> Any:
        own = {"subject": whose} if subject else {}
        np.savez(tmp_path / "own.npz", x=np.zeros((144, 1)), y=labels, **own)
        return read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path)

    records = [f"MRN{i // 12}" for i in range(144)]
    assert len(read(records, subject=False).classes) == 12
    with refused("12 different labels of 12 samples, each subject's with one label counted once") as caught:
        read(records, subject=True)
    assert "MRN" not in str(caught.value)
    assert len(read([f"exercise {i % 12}" for i in range(144)], subject=True).classes) == 12


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_labels_that_name_single_samples_stay_at_the_site(kind: str, tmp_path: Path) -> None:
    """Class names go to the server and to all other sites. A column of record numbers is easily taken for the label."""

    def read(labels: list[str]) -> Any:
        pd.DataFrame({"age": range(len(labels)), "record": labels}).to_csv(tmp_path / "own.csv", index=False)
        np.savez(tmp_path / "own.npz", x=np.zeros((len(labels), 1)), y=labels)
        settings: dict[str, Any] = {"csv": "own.csv", "label": "record"} if kind == "csv" else {"npz": "own.npz"}
        return read_site_dataset("oslo", settings, tmp_path)

    records = [f"MRN{number}" for number in range(22)]
    with refused("22 different labels of 43 samples", "leave this site") as caught:
        read([*records, *records[:21]])
    assert "MRN" not in str(caught.value)
    assert len(read(2 * records).classes) == 22
    assert len(read(records[:10]).classes) == 10
    with refused("11 different labels of 11 samples"):
        read(records[:11])


def _write_odd_table(folder: Path) -> dict[str, Any]:
    """A record number, a code of missing values, ages as labels, and 20 rows that are there twice."""
    rng = np.random.default_rng(0)
    rows = [
        f"{1000 + i},{999 if i % 40 == 0 else rng.integers(20, 80)},{rng.normal():.6f},{30 + i % 25}"
        for i in range(160)
    ]
    (folder / "odd.csv").write_text("\n".join(["record,weight,bp,age", *rows, *rows[:20]]) + "\n")
    return {"csv": "odd.csv", "label": "age"}


def test_a_site_is_warned_of_what_one_process_warns_of(tmp_path: Path) -> None:
    """In the same words, but for the settings, and whatever the schema is. The counts are those of its own samples."""
    data = _write_odd_table(tmp_path)
    table = pd.read_csv(tmp_path / "odd.csv")
    rows = table[["record", "weight", "bp"]], table["age"].to_numpy()
    in_one_process = [
        text.partition(": ")[2] for text in Federation.from_arrays({"oslo": rows, "lima": rows}).warnings()
    ]
    client = read_site_dataset("oslo", data, tmp_path).client([str(age) for age in range(30, 55)])
    known = set(map(tuple, client.train.x.tolist()))
    copies, codes = sum(tuple(row) in known for row in client.test.x.tolist()), int((client.train.x[:, 1] == 999).sum())
    assert copies
    for schema in ({}, {"schema": "auto"}):
        warnings = read_site_dataset("oslo", {**data, **schema}, tmp_path).warnings()
        assert warnings[0].startswith(f"{copies} of {len(client.test)} test samples are equal to training samples")
        assert warnings[1].startswith(f"'weight' is 999 in {codes} rows, and ")
        assert warnings[1].endswith("empty these cells (schema: auto allows gaps): it would be taken for a measurement")
        assert warnings[2:] == [text for text in in_one_process if "the label has 25 different whole numbers" in text]
        assert warnings[2:]
    table.drop_duplicates().to_csv(tmp_path / "odd.csv", index=False)
    for schema in ({}, {"schema": "auto"}):
        warnings = read_site_dataset("oslo", {**data, **schema}, tmp_path).warnings()
        assert "'record': another whole number in every row" in warnings[0]
        assert "leave it out (drop: [record])" in warnings[0]
        left = read_site_dataset("oslo", {**data, **schema, "drop": "record"}, tmp_path).warnings()
        assert [text for text in warnings if text not in left] == warnings[:1]
    (tmp_path / "odd.csv").write_text("patient,ill\n" + "".join(f"{i // 2},{i % 2}\n" for i in range(30)))
    warnings = read_site_dataset("oslo", {"csv": "odd.csv", "label": "ill"}, tmp_path).warnings()
    assert len(warnings) == 1
    assert warnings[0].endswith("name it as the subject (subject: patient), or leave it out (drop: [patient])")


def test_what_needs_other_clients_is_no_warning_of_a_site(tmp_path: Path) -> None:
    """Alone, each would be warned of: nobody else has its values."""
    rows = [f"{'ab'[i % 2]},oslo,{i % 7}" for i in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["ill,hospital,dose", *rows]) + "\n")
    schema = {"columns": [{"name": "hospital", "kind": "category", "categories": {"oslo": 0, "lima": 1}}]}
    schema["columns"].append({"name": "dose", "kind": "number"})
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    data = {"csv": "own.csv", "label": "ill", "schema": "schema.yaml"}
    assert read_site_dataset("oslo", data, tmp_path).warnings() == []


def test_classes_that_are_numbers_are_sorted_as_numbers() -> None:
    assert sorted_classes({"10", "9", "-1"}) == ("-1", "9", "10")
    assert sorted_classes({"10", "b", "a"}) == ("10", "a", "b")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({}, "exactly one of"),
        ({"folder": "a", "csv": "b"}, "exactly one of"),
        ({"csv": "none.csv"}, "need 'label'"),
        ({"csv": "none.csv", "label": "y"}, "none.csv"),
        ({"npz": "none.npz"}, "none.npz"),
        ({"folder": "nowhere"}, "nowhere"),
        ({"npz": "a.npz", "lable": "y"}, "no setting 'lable'"),
        ({"dataset": "digits", "clients": 3, "client": 3}, "shares 0 to 2"),
        ({"csv": "none.csv", "label": "y", "categories": ["a"]}, "categories need 'schema: auto'"),
    ],
)
def test_a_mistake_in_the_settings_is_named(data: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with refused(complaint) as caught:
        read_site_dataset("oslo", data, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'site.yaml'}: data: ")


def _write_table(folder: Path) -> None:
    lines = [f"{i % 3},{i},{'ab'[i % 2]}" for i in range(40)]
    (folder / "v.csv").write_text("bp,5,y\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"label": ["y"]}, "site.yaml: data: 'label: [y]': give text"),
        ({"label": True}, "site.yaml: data: 'label: true': give text"),
        ({"label": 6}, "has no column '6' for the label"),
        ({"drop": 6}, "has no column '6' to drop"),
        ({"drop": {"bp": 1}}, "site.yaml: data: 'drop: {bp: 1}': give a list, as in [a, b]"),
        ({"schema": ["auto"]}, "site.yaml: data: 'schema: [auto]': give text"),
        (
            {"schema": "auto", "categories": [["bp"]]},
            "site.yaml: data: 'categories: [[bp]]': give a list, as in [a, b]",
        ),
        ({"csv": None}, "site.yaml: data: 'csv: null': give text"),
        ({"seed": "many"}, "site.yaml: data: 'seed: many': give a whole number"),
        ({5: "y"}, "site.yaml: data: no setting '5' for csv data"),
    ],
)
def test_a_value_of_a_wrong_kind_is_named(settings: dict[Any, Any], complaint: str, tmp_path: Path) -> None:
    _write_table(tmp_path)
    with refused(complaint):
        read_site_dataset("oslo", {"csv": "v.csv", "label": "y", **settings}, tmp_path)


def test_a_setting_of_a_dataset_with_a_number_for_a_name_is_named(tmp_path: Path) -> None:
    with refused("'digits' has no setting '5'"):
        read_site_dataset("oslo", {"dataset": "digits", 5: 1}, tmp_path)


@pytest.mark.parametrize(
    ("drop", "columns"), [("bp", ("5",)), (["bp"], ("5",)), (5, ("bp",)), ([5], ("bp",)), (None, ("bp", "5"))]
)
def test_a_single_name_is_a_list_of_one(drop: object, columns: tuple[str, ...], tmp_path: Path) -> None:
    """A column's name may be a number."""
    _write_table(tmp_path)
    data = {"csv": "v.csv", "label": "y", "drop": drop}
    assert read_site_dataset("oslo", data, tmp_path).columns == columns
    auto = read_site_dataset("oslo", {**data, "drop": 5, "schema": "auto", "categories": "bp"}, tmp_path)
    assert auto.sums is not None
    assert set(auto.sums["bp"].levels) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (np.full((20, 2), "smith"), "own.npz: client 'oslo': X[0, 0] is 'smith', not a number"),
        (np.zeros((21, 2)), "own.npz: client 'oslo': X has 21 samples, y 20 labels"),
    ],
)
def test_values_that_cannot_be_used_are_refused_before_a_message_is_answered(
    x: Any, complaint: str, tmp_path: Path
) -> None:
    """The answer to the first message would carry the value to the server."""
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2)
    with refused(f"site.yaml: data: {complaint}"):
        read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path)


@pytest.mark.parametrize("damage", ["cut off", "half", "flipped", "empty", "npy", "text"])
def test_a_broken_file_of_arrays_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50) % 2)
    whole = path.read_bytes()
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        flipped = bytes([*whole[:200], *(255 - b for b in whole[200:400]), *whole[400:]])
        damaged = {"cut off": whole[:-5], "half": whole[: len(whole) // 2], "flipped": flipped, "empty": b""}
        path.write_bytes(damaged.get(damage, b"x,y\n1,2\n"))
    with pytest.raises(FeddrmError, match=r"cannot read .*own\.npz .*: give an \.npz file with the arrays x and y"):
        read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path)


def test_labels_of_arrays_are_read_as_in_one_process(tmp_path: Path) -> None:
    """A site with 0.0 and 1.0 would else have other classes than one with 0 and 1, and a column those of lists."""
    x, y = np.zeros((6, 2)), np.arange(6) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y.astype(float))
    assert read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path).classes == ("0", "1")
    for wrong, complaint in (
        (y[:, None], r"y has shape \(6, 1\).* y\.ravel\(\)"),
        (np.array([0, 1, 0, 1, 0, np.nan]), r"y\[5\] is nan, not a class"),
    ):
        np.savez(tmp_path / "own.npz", x=x, y=wrong)
        with pytest.raises(FeddrmError, match=rf"site\.yaml: data: .*own\.npz: {complaint}"):
            read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path)


def test_arrays_of_several_clients_are_no_data_of_one_site(tmp_path: Path) -> None:
    """One process takes such a file. A site would train on all of its rows as if they were its own."""
    arrays = {"x": np.zeros((6, 2)), "y": np.arange(6) % 2}
    np.savez(tmp_path / "own.npz", **arrays, client=np.array(["oslo"] * 6))
    assert read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path).classes == ("0", "1")
    np.savez(tmp_path / "own.npz", **arrays, client=np.array(["oslo", "lima"] * 3))
    with refused("own.npz has rows of several clients (lima, oslo): give the rows of this site alone"):
        read_site_dataset("oslo", {"npz": "own.npz"}, tmp_path)
