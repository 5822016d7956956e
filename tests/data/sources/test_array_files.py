"""Federations from .npz files: one per client, or one with the names of clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feddrm.data import Federation
from refusal import refused

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 3)), np.arange(24) % 2
OWNERS = np.array(["oslo"] * 10 + ["lima"] * 14)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "sites"
    path.mkdir()
    for name in ("oslo", "lima"):
        np.savez(path / f"{name}.npz", x=X[name == OWNERS], y=Y[name == OWNERS])
    (path / ".hidden.npz").write_bytes(b"")
    (path / "notes.txt").write_text("")
    return path


def test_a_folder_has_one_file_per_client(folder: Path):
    fed = Federation.from_npz(folder, test_fraction=0.25, seed=3)
    arrays = {name: (X[name == OWNERS], Y[name == OWNERS]) for name in ("lima", "oslo")}
    assert fed.digest() == Federation.from_arrays(arrays, test_fraction=0.25, seed=3).digest()
    assert (fed.name, fed.source) == ("sites", str(folder))


def test_arrays_of_other_names_are_not_read_and_named(folder: Path):
    """Whoever calls the subjects ``patient`` must see that they do not count."""
    np.savez(folder / "oslo.npz", x=X[:10], y=Y[:10], patient=np.arange(10) // 2, age=np.arange(10))
    fed = Federation.from_npz(folder)
    assert fed.source == f"{folder} (arrays that are not read: age, patient)"
    assert fed.clients[1].train.subject is None
    np.savez(folder / "lima.npz", x=X[:10], y=Y[:10], subject=np.arange(10) // 2)
    np.savez(folder / "oslo.npz", x=X[:10], y=Y[:10], subject=np.arange(10) // 2)
    assert Federation.from_npz(folder).source == str(folder)


def test_one_file_names_the_clients(tmp_path: Path):
    order = RNG.permutation(24)
    np.savez(tmp_path / "all.npz", x=X[order], y=Y[order], client=OWNERS[order])
    fed = Federation.from_npz(tmp_path / "all.npz")
    assert sorted(fed.names) == ["lima", "oslo"]
    assert {client.name: len(client.train) + len(client.test) for client in fed.clients} == {"oslo": 10, "lima": 14}


def test_names_of_clients_may_be_bytes(tmp_path: Path):
    np.savez(tmp_path / "all.npz", x=X, y=Y, client=np.char.encode(np.where(Y, "málaga", OWNERS), "utf-8"))
    assert Federation.from_npz(tmp_path / "all.npz").names == ("oslo", "málaga", "lima")


def test_test_samples_may_be_given(folder: Path):
    fed = Federation.from_npz(folder, test=folder)
    assert [len(client.test) for client in fed.clients] == [14, 10]
    assert fed.settings == {"test": "given"}


def test_labels_may_be_text(tmp_path: Path):
    np.savez(tmp_path / "all.npz", x=X, y=np.where(Y, "ill", "well"), client=OWNERS)
    assert Federation.from_npz(tmp_path / "all.npz").classes == ("ill", "well")


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"x": X, "y": Y}, ("has no array client", "give a folder of files")),
        ({"x": X, "client": OWNERS}, ("cannot read", "with the arrays x and y")),
        ({"x": X, "y": Y, "client": OWNERS[:5]}, ("client has shape (5,) for 24 samples",)),
        ({"x": X, "y": Y[:5], "client": OWNERS}, ("x has 24 samples, y 5 labels",)),
        ({"x": np.array(1.0), "y": Y, "client": OWNERS}, ("x is a single value: give an array",)),
        ({"x": X, "y": np.array(1), "client": OWNERS}, ("y is a single value: give an array",)),
        ({"x": np.array(1.0), "y": np.array(1), "client": np.array("oslo")}, ("x is a single value",)),
        ({"x": X, "y": Y, "client": np.array("oslo")}, ("client has shape () for 24 samples",)),
        ({"x": X, "y": Y, "client": OWNERS[:, None]}, ("client has shape (24, 1) for 24 samples", "client.ravel()")),
        ({"x": X, "y": Y[:, None], "client": OWNERS}, ("all.npz: y has shape (24, 1)", "a column: y.ravel()")),
        ({"x": X, "y": Y + 0.5, "client": OWNERS}, ("all.npz: y[0] is 0.5, not a class",)),
        ({"x": X, "y": Y, "client": np.where(Y, np.nan, 1.0)}, ("client[1] is 'nan', no name", "remove the row")),
        ({"x": X, "y": Y, "client": np.where(Y, "", OWNERS)}, ("client[1] is '', no name",)),
        ({"x": X, "y": Y, "client": np.full(24, b"\xe9")}, ("client[0] is b'\\xe9', not UTF-8",)),
        ({"x": X, "y": Y, "client": np.full(24, "oslo")}, ("at least two clients",)),
        ({"x": np.where(X > 1, np.nan, X), "y": Y, "client": OWNERS}, ("client 'oslo': X[", "nan", "fill it in")),
    ],
)
def test_bad_files_are_refused(arrays, parts, tmp_path: Path):
    np.savez(tmp_path / "all.npz", **arrays)
    with refused(*parts):
        Federation.from_npz(tmp_path / "all.npz")


def test_missing_and_empty_places_are_refused(tmp_path: Path):
    with refused("nowhere.npz does not exist"):
        Federation.from_npz(tmp_path / "nowhere.npz")
    with refused("holds no .npz file", "one per client"):
        Federation.from_npz(tmp_path)


def test_objects_are_never_unpickled(tmp_path: Path):
    np.savez(tmp_path / "all.npz", x=np.array([{}], dtype=object), y=Y, client=OWNERS)
    with refused("cannot read"):
        Federation.from_npz(tmp_path / "all.npz")
