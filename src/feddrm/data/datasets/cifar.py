"""CIFAR-10, CIFAR-100 and its 20 superclasses; training and test images are pooled and divided again."""

from __future__ import annotations

import hashlib
import io
import tarfile
from abc import ABC
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from feddrm.data.client import Client, Split
from feddrm.data.crop import RandomResizedCrop, column_first
from feddrm.data.datasets.base import DividedDataset, FileDataset
from feddrm.data.datasets.cifar_names import CIFAR10, CIFAR20, CIFAR100
from feddrm.data.federation import Federation
from feddrm.data.shift import colour_shifts
from feddrm.data.view import View
from feddrm.errors import FeddrmError
from feddrm.io import data_files
from feddrm.io.official_files import HUNDRED, TEN, Origin
from feddrm.io.tensors import BROKEN_NPZ
from feddrm.registry import check_choice

SIDE = 32
IMAGES = 60_000
DECODERS = 2  # threads; Pillow releases the interpreter's lock while it decodes

Bytes = NDArray[np.uint8]


class CifarPool(NamedTuple):
    """All images [n, 32, 32, 3] with their labels. ``coarse`` is None for CIFAR-10."""

    images: Bytes
    fine: NDArray[np.int64]
    coarse: NDArray[np.int64] | None
    source: str

    def sha256(self) -> str:
        """The checksum of all images, then all fine labels, then all coarse labels, one byte each."""
        digest = hashlib.sha256(self.images.data)
        for labels in (self.fine, self.coarse):
            if labels is not None:
                digest.update(labels.astype(np.uint8).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Cifar(DividedDataset, FileDataset, ABC):
    """A CIFAR dataset: every client has its own colour shift, and every access a random crop."""

    origin: ClassVar[Origin]
    names: ClassVar[tuple[str, ...]]

    def load(self) -> Federation:
        pool = read_pool(self.origin, data_dir=self.data_dir, download=self.download)
        labels = self.labels(pool)
        parts = self.divide(self.partition_labels(pool))
        x = torch.from_numpy(pool.images).permute(0, 3, 1, 2)
        y = torch.from_numpy(labels)

        def split(indices: NDArray[np.int64]) -> Split:
            index = torch.from_numpy(indices)
            return Split(column_first(x[index]), y[index])

        views = [View(shift) for shift in colour_shifts(self.shift, self.clients)]
        first = [int(np.flatnonzero(labels == k)[0]) for k in range(min(8, len(self.names)))]
        return Federation(
            name=self.name,
            clients=tuple(
                Client(f"client-{i}", split(train), split(test), view, str(view.shift or "none"))
                for i, ((train, test), view) in enumerate(zip(parts, views, strict=True))
            ),
            classes=self.names,
            source=pool.source,
            crop=RandomResizedCrop(),
            mirrors=True,
            gallery=torch.stack([x[first] if v.shift is None else v.shift.direct(x[first]) for v in views]),
            gallery_labels=tuple(range(len(first))),
            settings=self.settings(),
        )

    def labels(self, pool: CifarPool) -> NDArray[np.int64]:
        """The labels to predict."""
        return pool.fine

    def partition_labels(self, pool: CifarPool) -> NDArray[np.int64]:
        """The labels by which samples are divided among the clients."""
        return self.labels(pool)


@dataclass(frozen=True)
class Cifar10(Cifar):
    """60,000 photographs 32x32 in 10 classes; every client its own colours"""

    name: ClassVar[str] = "cifar10"
    origin = TEN
    names = CIFAR10


@dataclass(frozen=True)
class Cifar100(Cifar):
    """60,000 photographs 32x32 in 100 classes; every client its own colours"""

    name: ClassVar[str] = "cifar100"
    origin = HUNDRED
    names = CIFAR100
    shards: int = 25


@dataclass(frozen=True)
class Cifar20(Cifar):
    """CIFAR-100 with its 20 superclasses as labels; divided by the fine ones, as in the paper"""

    name: ClassVar[str] = "cifar20"
    origin = HUNDRED
    names = CIFAR20
    shards: int = 25
    divide_by: str = "fine"

    def check(self) -> None:
        super().check()
        check_choice("divide_by", self.divide_by, ("fine", "coarse"))

    def labels(self, pool: CifarPool) -> NDArray[np.int64]:
        assert pool.coarse is not None
        return pool.coarse

    def partition_labels(self, pool: CifarPool) -> NDArray[np.int64]:
        return pool.fine if self.divide_by == "fine" else self.labels(pool)


def read_pool(origin: Origin, *, data_dir: str | None, download: bool) -> CifarPool:
    """All 60,000 images, from packed files or from the official binary archive, with their checksum verified."""
    if not download and data_files.find(origin.alternatives, data_dir) is None:
        for name in origin.pickled:
            if paths := data_files.find([(name,)], data_dir):
                raise FeddrmError(
                    f"{paths[0]} is the pickled form, which could run code when read: "
                    f"use the binary form {origin.archive.url} (or --download)"
                )
    paths = data_files.obtain(
        origin.packed, origin.alternatives, [origin.archive], data_dir=data_dir, download=download
    )
    pool = _read_packed(paths, origin) if paths[0].suffix == ".npz" else _read_binary(paths[0], origin)
    if (sha256 := pool.sha256()) != origin.sha256:
        raise FeddrmError(
            f"images and labels in {', '.join(map(str, paths))} have sha256 {sha256[:12]}..., expected "
            f"{origin.sha256[:12]}...: remove them and fetch them again"
        )
    return pool


def _read_packed(paths: list[Path], origin: Origin) -> CifarPool:
    """Read .npz files of lossless WebP images, each a column of images; see docs/data.md."""
    images = np.empty((IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    fine, coarse = np.empty(IMAGES, dtype=np.int64), np.empty(IMAGES, dtype=np.int64)
    label_names = ("y",) if origin.label_bytes == 1 else ("fine", "coarse")
    filled = 0
    for path in paths:
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as part:
                blob, offsets, start = part["blob"].tobytes(), part["off"], int(part["start"])
                labels = [part[name].astype(np.int64) for name in label_names]
            with ThreadPoolExecutor(DECODERS) as executor:
                columns = executor.map(_decode, [blob[a:b] for a, b in pairwise(offsets)])
                end = start
                for column in columns:
                    images[end : end + len(column)] = column
                    end += len(column)
            fine[start:end] = labels[0]
            coarse[start:end] = labels[-1]
        except BROKEN_NPZ as error:
            raise FeddrmError(f"cannot read {path} ({error}): fetch it again") from error
        filled += end - start
    if filled != IMAGES:
        raise FeddrmError(f"{paths[0].parent} holds {filled} images of {origin.packed}, not {IMAGES}: fetch them again")
    return CifarPool(images, fine, coarse if len(label_names) == 2 else None, f"{paths[0].parent} (packed files)")


def _decode(webp: bytes) -> Bytes:
    with Image.open(io.BytesIO(webp)) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, SIDE, SIDE, 3)


def _read_binary(path: Path, origin: Origin) -> CifarPool:
    """Read the official records: one or two label bytes (coarse, fine), then the red, green and blue planes."""
    try:
        record = origin.label_bytes + 3 * SIDE * SIDE
        parts = [np.frombuffer(part, np.uint8).reshape(-1, record) for part in _binary_parts(path, origin)]
        records = np.concatenate(parts)
    except (OSError, KeyError, ValueError, EOFError, tarfile.TarError) as error:
        raise FeddrmError(f"cannot read {path} ({error}): fetch {origin.archive.url} again") from error
    labels, planes = records[:, : origin.label_bytes].astype(np.int64), records[:, origin.label_bytes :]
    images = np.ascontiguousarray(planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
    coarse = labels[:, 0] if origin.label_bytes == 2 else None
    return CifarPool(images, labels[:, -1], coarse, f"{path} (official files)")


def _binary_parts(path: Path, origin: Origin) -> Iterator[bytes]:
    """The contents of the binary files, from a folder or from the archive."""
    if path.is_dir():
        for name in origin.parts:
            yield (path / name).read_bytes()
        return
    with tarfile.open(path) as archive:
        for name in origin.parts:
            member = archive.extractfile(f"{origin.folder}/{name}")
            if member is None:
                raise KeyError(f"{name} is not a file")
            yield member.read()
