"""Samples from files in the layout of LEAF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feddrm.data import Federation, load
from refusal import refused


def write(folder: Path, name: str, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    content = {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}
    (folder / name).write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three users in two files of 2 x 2 pixels; the third has a single training sample."""
    grey = [[0.0, 0.2, 0.4, 1.0], [1.0, 0.0, 0.0, 0.0], [0.4, 0.4, 0.4, 0.4]]
    write(tmp_path / "train", "all_data_0.json", {"f1": (grey, [0, 1, 0]), "f2": (grey[:2], [1, 0])})
    write(tmp_path / "train", "all_data_1.json", {"f3": (grey[:1], [1])})
    write(
        tmp_path / "test", "all_data_0.json", {"f1": (grey[:1], [1]), "f2": (grey[1:], [0, 1]), "f3": (grey[:1], [1])}
    )
    return tmp_path


def test_users_are_clients_and_few_samples_are_left_out(root: Path) -> None:
    fed = Federation.from_leaf(root)
    assert (fed.names, fed.sizes.tolist(), fed.shape) == (("f1", "f2"), [3, 2], (4,))
    assert fed.clients[1].test.x.tolist()[0] == [1, 0, 0, 0]
    assert fed.clients[1].test.y.tolist() == [0, 1]
    assert Federation.from_leaf(root, least=1).names == ("f1", "f2", "f3")


def test_flat_lists_become_images_of_the_given_shape(root: Path) -> None:
    fed = load("leaf", path=str(root), shape=(2, 2))
    assert fed.shape == (1, 2, 2)
    assert fed.clients[0].train.x[0].tolist() == [[[0, 51], [102, 255]]]


def test_without_test_files_samples_are_split_off(root: Path) -> None:
    (root / "test" / "all_data_0.json").unlink()
    (root / "test").rmdir()
    fed = Federation.from_leaf(root, test_fraction=0.5, seed=1)
    assert [len(client.test) for client in fed.clients] == [2, 1]


def test_files_that_are_not_leafs_are_refused(root: Path, tmp_path: Path) -> None:
    with refused(str(tmp_path / "none" / "train"), "LEAF has folders train and test"):
        Federation.from_leaf(tmp_path / "none")
    with refused("user 'f1': x is no list of samples with numbers of shape [3, 3]", "correct it or 'shape'"):
        Federation.from_leaf(root, shape=(3, 3))
    with refused("no user with 9 samples"):
        Federation.from_leaf(root, least=9)
    write(root / "test", "all_data_1.json", {"f9": ([[0, 0, 0, 0]], [1])})
    with refused("f9 has samples in only one of train and test", "-t sample"):
        Federation.from_leaf(root)
    write(root / "test", "all_data_1.json", {"f1": ([[0, 0, 0, 0]], [1])})
    with refused("all_data_1.json: user 'f1' is in another file, too"):
        Federation.from_leaf(root)
    (root / "train" / "all_data_1.json").write_text('{"user_data": {"f3": {"x": []}}}')
    with refused("user 'f3' has no x and y"):
        Federation.from_leaf(root)
    for y, text in (("5", "5"), ("null", "None"), ('"ab"', "'ab'")):
        (root / "train" / "all_data_1.json").write_text(f'{{"user_data": {{"f3": {{"x": [[0, 0, 0, 0]], "y": {y}}}}}}}')
        with refused(f"user 'f3': y is {text}, no list: give one label per sample"):
            Federation.from_leaf(root)
    for x in ("5", "null", "[{}]", f"[[{10**400}, 0, 0, 0]]"):
        (root / "train" / "all_data_1.json").write_text(f'{{"user_data": {{"f3": {{"x": {x}, "y": [1]}}}}}}')
        with refused("user 'f3': x is no list of samples with numbers of shape [2, 2]"):
            Federation.from_leaf(root, shape=(2, 2))
    (root / "train" / "all_data_1.json").write_text("{}")
    with refused("all_data_1.json has no user_data"):
        Federation.from_leaf(root)
