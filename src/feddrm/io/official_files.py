"""The official files of the datasets: their names, their addresses and their checksums."""

from __future__ import annotations

from typing import NamedTuple

from feddrm.io.data_files import Remote

HOME = "https://www.cs.toronto.edu/~kriz"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MD5 = (
    "2d91a8ff69cfd9616aa47b59d6f843db",
    "22e96bee155b5973568101c93b3705f6",
    "9a87f7577310b3917730d06ba9349e20",
    "4249d03ca7711e84f4444768c9426170",
)
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
HEART = tuple(Remote(f"{URL}/processed.{h}.data", md5) for h, md5 in zip(HOSPITALS, MD5, strict=True))
TCGA_BRCA = ("brca.csv", "centers.csv", "train_test_split.csv")


class Origin(NamedTuple):
    """One of the two collections of CIFAR: the names of its files, and the checksum of their content."""

    packed: str
    folder: str
    parts: tuple[str, ...]
    archive: Remote
    pickled: tuple[str, str]
    label_bytes: int
    sha256: str  # as CifarPool.sha256 computes it

    @property
    def alternatives(self) -> tuple[tuple[str, ...], ...]:
        """The sets of files, each of which holds the whole collection."""
        return tuple(f"{self.packed}_{i}.npz" for i in (0, 1)), (self.archive.filename,), (self.folder,)


TEN = Origin(
    packed="cifar10",
    folder="cifar-10-batches-bin",
    parts=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    archive=Remote(f"{HOME}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
    label_bytes=1,
    sha256="795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69",
)
HUNDRED = Origin(
    packed="cifar100",
    folder="cifar-100-binary",
    parts=("train.bin", "test.bin"),
    archive=Remote(f"{HOME}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
    label_bytes=2,
    sha256="7b8e2114e67eef95bef58a6b54511fe597a0f465ac2d6bf328a1c5538f6de506",
)
CIFAR = {"cifar10": TEN, "cifar100": HUNDRED}


def alternatives(dataset: str) -> tuple[tuple[str, ...], ...]:
    """The sets of files, each of which holds a whole dataset."""
    if dataset in CIFAR:
        return CIFAR[dataset].alternatives
    names = {"heart": tuple(remote.filename for remote in HEART), "tcga_brca": TCGA_BRCA}[dataset]
    return names, tuple(f"{dataset}/{name}" for name in names)
