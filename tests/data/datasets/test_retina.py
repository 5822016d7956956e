"""RETINA, on images made here in its layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddrm.data.datasets.base import load
from feddrm.data.datasets.retina import VIEWS
from feddrm.data.partition import split
from feddrm.data.view import View
from refusal import refused

CLIENTS = ("kaggle_arima", "RIM", "REFUGE")


def plant(root: Path, names: tuple[str, str] = ("Glaucoma", "Normal")) -> None:
    """Ten images a client: 4 + 2 for training, 1 + 3 for testing, each of one grey value of its own."""
    for client in CLIENTS:
        value = 0
        for part, counts in (("Training", (4, 2)), ("Testing", (1, 3))):
            for label, count in zip(names, counts, strict=True):
                folder = root / client / part / label
                folder.mkdir(parents=True)
                for i in range(count):
                    Image.new("RGB", (100 + i, 80), (value,) * 3).save(folder / f"{i}.png")
                    value += 1


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDDRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    plant(tmp_path / "retina_balanced")
    return tmp_path


def test_parts_are_pooled_and_divided_anew(data: Path) -> None:
    fed = load("retina", data_dir=str(data), seed=1)
    assert (fed.name, fed.names, fed.classes, fed.shape) == ("retina", CLIENTS, ("Glaucoma", "Normal"), (3, 96, 96))
    assert fed.settings == {"seed": 1, "normalise": "client"}
    labels = np.array([0, 0, 0, 0, 1, 1, 0, 1, 1, 1])
    parts = split([np.arange(10)] * 3, np.random.RandomState(1))
    for client, (first, rest) in zip(fed.clients, parts, strict=True):
        assert client.train.x[:, 1, 50, 50].tolist() == first.tolist()
        assert client.test.x[:, 2, 0, 95].tolist() == rest.tolist()
        assert client.train.y.tolist() == labels[first].tolist()
        assert client.test.y.tolist() == labels[rest].tolist()


def test_found_as_the_data_folder_and_through_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("retina", data_dir=str(data / "retina_balanced")).sizes.tolist() == [7, 7, 7]
    monkeypatch.setenv("FEDDRM_DATA", str(data))
    assert str(data / "retina_balanced") in load("retina").source


def test_resized_by_pillow_and_always_rgb(data: Path) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (150, 120)).astype(np.uint8)
    for path in (data / "retina_balanced").rglob("*.png"):
        Image.fromarray(pixels).save(path)
    want = np.asarray(Image.fromarray(pixels).resize((96, 96), Image.Resampling.BILINEAR))
    fed = load("retina", data_dir=str(data))
    assert fed.shape == (3, 96, 96)
    assert np.array_equal(fed.clients[0].train.x[0].numpy(), np.stack([want] * 3))


def test_each_client_has_its_constants_unless_common(data: Path) -> None:
    fed = load("retina", data_dir=str(data))
    assert [client.view for client in fed.clients] == [VIEWS[name] for name in CLIENTS]
    grey = torch.full((1, 3, 96, 96), 51, dtype=torch.uint8)
    rim = fed.clients[1].view(grey)[0, :, 0, 0]
    want = [(0.2 - 0.5886) / 0.1147, (0.2 - 0.2652) / 0.0937, (0.2 - 0.1481) / 0.0461]
    torch.testing.assert_close(rim, torch.tensor(want))
    common = load("retina", data_dir=str(data), normalise="common")
    assert {client.view for client in common.clients} == {View()}
    with refused("unknown normalise 'comon'; did you mean 'common'?", "client, common"):
        load("retina", normalise="comon")


def test_a_missing_folder_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    with refused(
        "'retina_balanced'",
        "kaggle_arima, RIM, REFUGE",
        "Training and Testing",
        str(tmp_path / "cache"),
        "ask its owners",
    ):
        load("retina", download=True)


def test_an_incomplete_folder_is_not_taken(data: Path) -> None:
    (data / "retina_balanced" / "RIM").rename(data / "retina_balanced" / "rim-one")
    with refused("no 'retina_balanced'", str(data), "FEDDRM_DATA"):
        load("retina", data_dir=str(data))


def test_wrong_class_folders_are_refused(data: Path) -> None:
    extra = data / "retina_balanced" / "RIM" / "Testing" / "Other"
    extra.mkdir()
    with refused(f"{extra.parent} has 3 class folders", "unpack the data again"):
        load("retina", data_dir=str(data))


def test_centres_that_name_their_classes_differently_are_shown(data: Path) -> None:
    for part in ("Training", "Testing"):
        folder = data / "retina_balanced" / "REFUGE" / part
        (folder / "Glaucoma").rename(folder / "0-ill")
    fed = load("retina", data_dir=str(data))
    assert fed.classes == ("Glaucoma | 0-ill", "Normal")
    assert fed.counts().tolist() == [[5, 5]] * 3


def test_broken_and_absent_images(data: Path) -> None:
    path = data / "retina_balanced" / "REFUGE" / "Testing" / "Normal" / "1.png"
    path.write_bytes(b"junk")
    with refused(f"{path} cannot be read as an image"):
        load("retina", data_dir=str(data))
    for image in (data / "retina_balanced" / "REFUGE").rglob("*.png"):
        image.unlink()
    with refused(f"{data / 'retina_balanced' / 'REFUGE'} has no images", "unpack the data again"):
        load("retina", data_dir=str(data))
