"""CIFAR: every file format gives the same federation, and altered files are refused."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddrm.data import Federation, QueryViews, load
from feddrm.data.datasets import cifar
from feddrm.data.datasets.cifar_names import CIFAR10, CIFAR20, CIFAR100
from feddrm.errors import FeddrmError

N = 400  # images of the made collections


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, no_data: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A small collection with CIFAR-100's structure: images, fine and coarse labels; checksums to match."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (N, 32, 32, 3), dtype=np.uint8)
    fine = rng.permutation(np.arange(N) % 100)
    monkeypatch.setattr(cifar, "IMAGES", N)
    for kind in (cifar.Cifar10, cifar.Cifar20, cifar.Cifar100):
        labels = [fine % 10] if kind is cifar.Cifar10 else [fine, fine // 5]
        content = b"".join([images.tobytes(), *(y.astype(np.uint8).tobytes() for y in labels)])
        monkeypatch.setattr(kind, "origin", kind.origin._replace(sha256=hashlib.sha256(content).hexdigest()))
    return images, fine, fine // 5


def write_packed(folder: Path, name: str, images: np.ndarray, **labels: np.ndarray) -> None:
    half = N // 2
    for part in (0, 1):
        rows = slice(part * half, (part + 1) * half)
        blobs = []
        for column in np.split(images[rows], 4):
            buffer = io.BytesIO()
            Image.fromarray(column.reshape(-1, 32, 3)).save(buffer, "WEBP", lossless=True, exact=True)
            blobs.append(buffer.getvalue())
        np.savez(
            folder / f"{name}_{part}.npz",
            blob=np.frombuffer(b"".join(blobs), np.uint8),
            off=np.cumsum([0, *map(len, blobs)]),
            start=part * half,
            **{key: y[rows] for key, y in labels.items()},
        )


def records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([*(y[:, None].astype(np.uint8) for y in labels), planes], axis=1).tobytes()


def all_samples(fed: Federation) -> list[tuple[bytes, int]]:
    splits = [s for c in fed.clients for s in (c.train, c.test)]
    return sorted((x.numpy().tobytes(), int(y)) for s in splits for x, y in zip(s.x, s.y, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["packed", "archive", "folder"])
def test_every_form_gives_the_same_federation(
    form: str, made: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    images, fine, coarse = made
    parts = {
        "train.bin": records(images[:300], coarse[:300], fine[:300]),
        "test.bin": records(images[300:], coarse[300:], fine[300:]),
    }
    if form == "packed":
        write_packed(tmp_path, "cifar100", images, fine=fine, coarse=coarse)
    elif form == "folder":
        (tmp_path / "cifar-100-binary").mkdir()
        for name, body in parts.items():
            (tmp_path / "cifar-100-binary" / name).write_bytes(body)
    else:
        with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as archive:
            for name, body in parts.items():
                member = tarfile.TarInfo(f"cifar-100-binary/{name}")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))
    settings = {"data_dir": str(tmp_path), "clients": 3, "alpha": 10.0}
    chw = images.transpose(0, 3, 1, 2)
    expected = sorted((x.tobytes(), int(y)) for x, y in zip(chw, fine, strict=True))
    assert all_samples(load("cifar100", **settings)) == expected
    superclasses = load("cifar20", **settings)
    assert all_samples(superclasses) == sorted((x.tobytes(), int(y)) for x, y in zip(chw, coarse, strict=True))
    assert superclasses.classes == CIFAR20
    # Divided by fine labels unless told otherwise: the same samples as CIFAR-100 at every client.
    assert superclasses.sizes.tolist() == load("cifar100", **settings).sizes.tolist()
    coarse_first = load("cifar20", divide_by="coarse", **settings).clients[0].train.x
    assert not torch.equal(coarse_first, superclasses.clients[0].train.x)


def test_cifar10_archive_has_one_label_byte(made: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, fine, _ = made
    (tmp_path / "cifar-10-batches-bin").mkdir()
    names = cifar.TEN.parts
    for name, rows in zip(names, np.array_split(np.arange(N), len(names)), strict=True):
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(records(images[rows], fine[rows] % 10))
    fed = load("cifar10", data_dir=str(tmp_path), clients=4, partition="iid", shift="pool")
    assert fed.counts().sum(0).tolist() == [40] * 10
    assert fed.clients[2].shift == "saturation 0.4, hue -0.15, gamma 1.4"
    assert fed.crop is not None
    assert fed.query_views == QueryViews(crops=True, mirrors=True)
    assert fed.settings == {"seed": 2025, "clients": 4, "partition": "iid", "shift": "pool"}


def test_altered_or_broken_files(made: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, fine, coarse = made
    altered = images.copy()
    altered[7, 0, 0, 0] ^= 1
    other = np.where(np.arange(N) == 7, (fine + 1) % 100, fine)
    for x, y, z in ((altered, fine, coarse), (images, other, coarse), (images, fine, np.roll(coarse, 1))):
        write_packed(tmp_path, "cifar100", x, fine=y, coarse=z)
        with pytest.raises(FeddrmError, match=r"sha256 .* expected .*: remove them and fetch them again"):
            load("cifar100", data_dir=str(tmp_path))
    (tmp_path / "cifar100_1.npz").write_bytes(b"not a zip file")
    with pytest.raises(FeddrmError, match=r"cannot read .*cifar100_1.npz"):
        load("cifar100", data_dir=str(tmp_path))
    whole = (tmp_path / "cifar100_0.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for broken in (whole[: len(whole) // 2], whole[:-1], bytes(flipped), b""):
        (tmp_path / "cifar100_0.npz").write_bytes(broken)
        with pytest.raises(FeddrmError, match=r"cannot read .*cifar100_0.npz .*: fetch it again"):
            load("cifar100", data_dir=str(tmp_path))


def test_the_pickled_archive_is_refused(no_data: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(FeddrmError, match=r"pickled form, which could run code when read: use the binary form https"):
        load("cifar10", data_dir=str(tmp_path))


def test_missing_files_are_named(no_data: Path) -> None:
    with pytest.raises(FeddrmError, match=r"no files of 'cifar10' in .*cache: put cifar10_0.npz \+ cifar10_1.npz or"):
        load("cifar10")
    with pytest.raises(FeddrmError, match=r"unknown divide_by 'both' \(known: fine, coarse\)"):
        load("cifar20", divide_by="both")


@pytest.mark.slow
@pytest.mark.data
def test_real_files(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "read_pool", functools.cache(cifar.read_pool))  # each file is read and verified once
    fed = load("cifar10", data_dir=str(real_data))
    assert fed.sizes.tolist() == [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410]
    assert fed.counts()[4].tolist() == [5267, 320, 43, 433, 1800, 0, 0, 0, 0, 0]
    assert sum(len(c.test) for c in fed.clients) == 18_004
    names = json.loads((real_data / "class_names.json").read_text())
    assert list(CIFAR10) == names["cifar10"]
    assert (list(CIFAR20), list(CIFAR100)) == (names["cifar100_coarse"], names["cifar100_fine"])
    spc = load("cifar20", data_dir=str(real_data), partition="shards")
    assert spc.sizes.tolist() == [5250] * 8
    assert all(14 <= int((row > 0).sum()) <= 17 for row in spc.counts())
    coarse = replace(cifar.Cifar20(), data_dir=str(real_data), divide_by="coarse").load()
    assert coarse.sizes.tolist() != load("cifar20", data_dir=str(real_data)).sizes.tolist()
