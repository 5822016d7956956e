"""Samples from .npz files: arrays x and y of one client each, or with an array client of all."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.data.sources.arrays import ArraySource, plain_labels
from feddrm.data.sources.labelled_samples import FederationParts, Label
from feddrm.errors import FeddrmError, quoted
from feddrm.io.tensors import BROKEN_NPZ
from feddrm.tables.column_kinds import MISSING

ClientArrays = dict[str, tuple[NDArray[Any], list[Label]]]


@dataclass(frozen=True, eq=False)
class ArrayFileSource:
    """A folder of .npz files, each named after its client, or one file whose array ``client`` names every row's client.

    ``x`` and ``y`` are as for :class:`ArraySource`. ``test`` has the same form and the same clients.
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
        return FederationParts(**{**vars(parts), "source": str(path)})


def read_arrays(path: Path) -> tuple[NDArray[Any], list[Label], list[str] | None]:
    """Samples, labels and, where the file has them, the names of their clients."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
            clients = arrays.get("client")
    except BROKEN_NPZ as error:
        raise FeddrmError(f"cannot read {path} ({error}): give an .npz file with the arrays x and y") from error
    for name, array in (("x", x), ("y", y)):
        if not array.ndim:
            raise FeddrmError(f"{path}: {name} is a single value: give an array with one entry per sample")
    labels = plain_labels(f"{path}: y", y)
    if clients is None:
        return x, labels, None
    if clients.shape != x.shape[:1]:
        raise FeddrmError(
            f"{path}: client has shape {clients.shape} for {len(x)} samples: give one name per sample (a column: "
            "client.ravel())"
        )
    return x, labels, [_client_name(path, row, name) for row, name in enumerate(clients.tolist())]


def _client_name(path: Path, row: int, value: Any) -> str:
    """A client's name as text. NaN, None and texts that mean a missing value are refused, as in a table."""
    try:
        name = value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise FeddrmError(f"{path}: client[{row}] is {value!r}, not UTF-8: write the names as text") from error
    if name.lower() in MISSING:
        raise FeddrmError(
            f"{path}: client[{row}] is {quoted(name)}, no name: fill it in, remove the row, or rename the client"
        )
    return name


def _read_clients(path: Path) -> ClientArrays:
    if not path.exists():
        raise FeddrmError(f"{path} does not exist: give the path of an .npz file, or of a folder of them")
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() == ".npz" and not p.name.startswith("."))
        if not files:
            raise FeddrmError(f"{path} holds no .npz file: put one per client there")
        return {file.stem: read_arrays(file)[:2] for file in files}
    x, y, clients = read_arrays(path)
    if clients is None:
        raise FeddrmError(f"{path} has no array client: add the name of every row's client, or give a folder of files")
    if len(y) != len(x):
        raise FeddrmError(f"{path}: x has {len(x)} samples, y {len(y)} labels: give one label per sample")
    rows: dict[str, list[int]] = {}
    for row, owner in enumerate(clients):
        rows.setdefault(owner, []).append(row)
    return {name: (x[index], [y[i] for i in index]) for name, index in rows.items()}
