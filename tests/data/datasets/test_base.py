"""Datasets by name: settings are checked before anything is read, and say how to load the same data again."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from feddrm.data import Dataset, Digits, Heart, load
from refusal import refused


def test_a_dataset_is_loaded_by_name_with_its_settings() -> None:
    federation = load("digits", clients=3, alpha=5.0, seed=7)
    assert (federation.name, len(federation)) == ("digits", 3)
    assert load(federation.name, **federation.settings).digest() == federation.digest()


def test_settings_leave_out_what_the_partition_does_not_use() -> None:
    common = {"seed": 2025, "clients": 8, "shift": "high"}
    assert Digits().settings() == common | {"partition": "dirichlet", "alpha": 0.3}
    assert Digits(partition="shards").settings() == common | {"partition": "shards", "shards": 5}
    assert Digits(partition="iid").settings() == common | {"partition": "iid"}


def test_settings_leave_out_where_the_files_are() -> None:
    assert Heart(data_dir="here", download=True).settings() == {"seed": 2025, "impute": "client"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shift": "hgih"}, "unknown shift 'hgih'; did you mean 'high'"),
        ({"partition": "dirichle"}, "unknown partition 'dirichle'; did you mean 'dirichlet'"),
        ({"clients": 1}, "at least two"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"alpha": float("inf")}, "alpha=inf"),
        ({"shards": 0}, "shards=0"),
        ({"seed": -1}, "seed -1 is out of range"),
        ({"seed": 2**32}, "seed 4294967296 is out of range"),
        ({"client": 4}, "no setting 'client'; did you mean 'clients'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with refused(message):
        load("digits", **settings)


def test_constructors_store_settings_without_checking_them() -> None:
    dataset = Dataset.make("digits", clients=1)
    assert asdict(dataset)["clients"] == 1
    with refused("at least two"):
        dataset.check()


def test_a_dataset_that_loads_no_federation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digits, "load", lambda _: None)
    with refused("load() of dataset 'digits' gives NoneType: return a Federation"):
        load("digits")
