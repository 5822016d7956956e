"""Samples from .npz files: arrays x and y of one client each, or with an array client of all."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feddrm.data.sources.arrays import ArraySource, plain_labels, plain_names
from feddrm.data.sources.labelled_samples import FederationParts, Label
from feddrm.errors import FeddrmError
from feddrm.io.tensors import BROKEN_NPZ

ROLES = ("client", "subject")  # arrays that a file may have beside x and y


class ArrayFile(NamedTuple):
    """Samples, labels and, where the file has them, the names of their clients and subjects."""

    x: NDArray[Any]
    labels: list[Label]
    clients: list[str] | None
    subjects: list[str] | None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Samples, labels and subjects, as :class:`ArraySource` takes those of one client."""
        return (self.x, self.labels) if self.subjects is None else (self.x, self.labels, self.subjects)


@dataclass(frozen=True, eq=False)
class ArrayFileSource:
    """A folder of .npz files, each named after its client, or one file whose array ``client`` names every row's client.

    ``x`` and ``y`` are as for :class:`ArraySource`. An array ``subject`` says whom each sample is of; the samples of a
    client's subject are not divided. ``test`` has the same form and the same clients.
    """

    path: str | Path
    _: KW_ONLY
    test: str | Path | None = None
    test_fraction: float = 0.3
    seed: int = 2025
    name: str | None = None

    def load(self) -> FederationParts:
        path = Path(self.path)
        test = None if self.test is None else _read_clients(Path(self.test))
        parts = ArraySource(
            _read_clients(path),
            test=test,
            test_fraction=self.test_fraction,
            seed=self.seed,
            name=self.name or path.resolve().stem or "own",
        ).load()
        unread = _unread_arrays(path)
        source = f"{path} (arrays that are not read: {', '.join(unread)})" if unread else str(path)
        return FederationParts(**{**vars(parts), "source": source})


def read_arrays(path: Path) -> ArrayFile:
    """The arrays of one file, checked."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
            names = {key: arrays[key] for key in ROLES if key in arrays}
    except BROKEN_NPZ as error:
        raise FeddrmError(f"cannot read {path} ({error}): give an .npz file with the arrays x and y") from error
    for name, array in (("x", x), ("y", y)):
        if not array.ndim:
            raise FeddrmError(f"{path}: {name} is a single value: give an array with one entry per sample")
    labels = plain_labels(f"{path}: y", y)
    clients, subjects = (
        plain_names(f"{path}: {key}", names[key], len(x)) if key in names else None for key in ("client", "subject")
    )
    return ArrayFile(x, labels, clients, subjects)


def _files(path: Path) -> list[Path]:
    """The files in a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.suffix.lower() == ".npz" and not p.name.startswith("."))


def _unread_arrays(path: Path) -> list[str]:
    """The names of all other arrays: somebody may have called the subjects ``patient``."""
    names: set[str] = set()
    for file in _files(path):
        with np.load(file, allow_pickle=False) as arrays:
            names |= set(arrays.files) - {"x", "y", *ROLES}
    return sorted(names)


def _read_clients(path: Path) -> dict[str, tuple[Any, ...]]:
    if not path.exists():
        raise FeddrmError(f"{path} does not exist: give the path of an .npz file, or of a folder of them")
    if path.is_dir():
        files = _files(path)
        if not files:
            raise FeddrmError(f"{path} holds no .npz file: put one per client there")
        return {file.stem: read_arrays(file).arrays for file in files}
    x, y, clients, subjects = read_arrays(path)
    if clients is None:
        raise FeddrmError(f"{path} has no array client: add the name of every row's client, or give a folder of files")
    if len(y) != len(x):
        raise FeddrmError(f"{path}: x has {len(x)} samples, y {len(y)} labels: give one label per sample")
    rows: dict[str, list[int]] = {}
    for row, owner in enumerate(clients):
        rows.setdefault(owner, []).append(row)
    return {
        name: ArrayFile(x[index], [y[i] for i in index], None, subjects and [subjects[i] for i in index]).arrays
        for name, index in rows.items()
    }
