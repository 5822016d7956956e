"""A user's own files as datasets: settings, and the same federation as from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest
import yaml
from PIL import Image

import feddrm
from feddrm.data import Csv, Federation, Folders, Npz, QueryViews, load
from feddrm.router import load_router
from refusal import refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two clients with two classes of five images each; every image has a value of its own."""
    for i in range(20):
        path = tmp_path / "pets" / ("lima", "oslo")[i // 10] / ("cat", "dog")[i // 5 % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 5), (i, i, i)).save(path)
    return tmp_path / "pets"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text("id,x,town,ill\n" + "".join(f"{i},{i},{'ab'[i % 2]},{i // 2 % 2}\n" for i in range(16)))
    return path


def test_folders_by_name_with_every_setting(root: Path) -> None:
    by_name = load("folders", path=str(root), size=4, test_fraction=0.5, seed=8)
    assert by_name.digest() == Federation.from_folders(root, size=4, test_fraction=0.5, seed=8).digest()
    assert by_name.shape == (3, 4, 4)
    assert by_name.sizes.tolist() == [5, 5]
    assert by_name.digest() != load("folders", path=str(root), size=4, test_fraction=0.5, seed=9).digest()


def test_tables_by_name_with_every_setting(table: Path) -> None:
    options = {"label": "ill", "client": "town", "drop": ["id"], "seed": 8}
    by_name = load("csv", path=str(table), test_fraction=0.5, **options)
    assert by_name.digest() == Federation.from_csv(table, test_fraction=0.5, **options).digest()
    assert by_name.columns == ("x",)
    given = load("csv", path=str(table), test=str(table), **options)
    assert given.settings["test"] == "given"
    assert given.sizes.tolist() == [8, 8]


def test_settings_hold_absolute_paths_and_nothing_empty(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    assert Folders(path="pets", size=4).settings() == {
        "seed": 2025,
        "path": str(root),
        "test_fraction": 0.3,
        "size": 4,
    }
    assert "size" not in Folders(path="pets").settings()
    settings = Csv(path="a.csv", test="b.csv", label="ill").settings()
    assert (settings["path"], settings["test"]) == (str(root.parent / "a.csv"), str(root.parent / "b.csv"))
    assert not {"client", "drop"} & settings.keys()


def test_missing_settings_are_named() -> None:
    with refused("'folders' needs to know where your data are", "--set data.path=..."):
        load("folders")
    with refused("'csv' needs to know which column to predict", "--set data.label=..."):
        load("csv", path="a.csv")
    with refused("folders: test_fraction=1.5", "between 0 and 1"):
        load("folders", path="pets", test_fraction=1.5)


def test_tables_by_name_with_a_schema(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (table.parent / "schema.yaml").write_text("columns: [{name: x, kind: number, centre: 8, scale: 4}]")
    monkeypatch.chdir(table.parent)
    data = Csv(path="visits.csv", label="ill", client="town", drop=("id",), schema="schema.yaml")
    assert data.settings()["schema"] == str(table.parent / "schema.yaml")
    fed = data.load()
    assert fed.schema is not None
    assert fed.schema.names == ("x",)
    assert sorted(x for c in fed.clients for s in (c.train, c.test) for x in s.x.flatten().tolist())[:2] == [-2, -1.75]
    assert "schema" not in Csv(path="visits.csv", label="ill").settings()


def test_the_owner_of_images_says_which_views_they_allow(root: Path) -> None:
    assert load("folders", path=str(root)).query_views == QueryViews()
    said = Folders(path=str(root), crop=True, mirrors=True)
    assert said.load().query_views == QueryViews(crops=True, mirrors=True)
    assert said.settings()["crop"] is True
    assert not {"crop", "mirrors"} & Folders(path=str(root)).settings().keys()


def test_arrays_by_name_with_every_setting(tmp_path: Path) -> None:
    for name in ("oslo", "lima"):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 2)
    by_name = load("npz", path=str(tmp_path), test_fraction=0.2, seed=8)
    assert by_name.digest() == Federation.from_npz(tmp_path, test_fraction=0.2, seed=8).digest()
    given = Npz(path=str(tmp_path), test=str(tmp_path))
    assert given.settings()["test"] == str(tmp_path)
    assert "test" not in Npz(path=str(tmp_path)).settings()
    assert given.load().sizes.tolist() == [10, 10]


def test_a_table_without_a_schema_file_from_training_to_a_query(tmp_path: Path) -> None:
    """The artifact carries the schema that the sums gave, and a query is a row of raw cells."""
    rng = np.random.default_rng(3)
    rows = pandas.DataFrame(
        {"town": rng.choice(["oslo", "lima"], 80), "colour": rng.choice(["red", "blue", "green"], 80)}
    )
    rows["dose"] = np.where(rows.town == "oslo", 1000, 2000) + rng.normal(0, 100, 80)
    rows["ill"] = (rows.colour == "red").map({True: "yes", False: "no"})
    rows.to_csv(tmp_path / "visits.csv", index=False)
    data = {"path": str(tmp_path / "visits.csv"), "label": "ill", "client": "town", "schema": "auto"}
    run = feddrm.train("csv", "feddrm", out=tmp_path / "run", data_settings=data, rounds=2, local_steps=2)
    run.fit_router(heads=False)
    queries = rows[["dose", "colour"]].head(6)
    router = load_router(tmp_path / "run" / "router")
    assert [router.names[place] for place in router.route(queries).client.tolist()] == rows.town.head(6).tolist()
    answers = run.predict(queries, abstain="answer")
    assert list(answers.client) == rows.town.head(6).tolist()
    assert set(answers.labels) <= {"yes", "no"}
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["data"]["schema"] == "auto"
