"""The typed result of loading data: clients, each with its own training and test samples."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from feddrm.data.crop import RandomResizedCrop
from feddrm.data.view import View
from feddrm.errors import FeddrmError

if TYPE_CHECKING:
    from feddrm.data.sources.build import Arrays, Paths

LONGEST_NAME = 200  # bytes: what disks allow a folder's name, less what a temporary one adds


DEPLOYED = "deployed"  # the name of data that nobody has in one place


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and labels: uint8 images [n, channels, height, width] or float32 rows [n, columns]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:  # in a notebook, what it is; not its tensors
        return f"Split({len(self)} samples of {'x'.join(map(str, self.x.shape[1:]))})"

    def to(self, device: torch.device | str) -> Split:
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Client:
    """One participant: what it holds, and how it sees a raw sample."""

    name: str
    train: Split
    test: Split
    view: View = field(default_factory=View)
    shift: str = "none"

    def to(self, device: torch.device | str) -> Client:
        return replace(self, train=self.train.to(device), test=self.test.to(device))


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that could train together, with everything a person needs to trust the numbers.

    ``source`` says where the samples came from, ``settings`` how they were divided and shifted,
    ``gallery`` holds [client, sample, channel, height, width] pictures of the same samples as each
    client would see them (None where clients differ by nature, not by a known transform).
    """

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    source: str
    crop: RandomResizedCrop | None = None
    columns: tuple[str, ...] | None = None
    gallery: Tensor | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_clients(self.name, [c.name for c in self.clients])
        shape, dtype = self.clients[0].train.x.shape[1:], self.clients[0].train.x.dtype
        for client in self.clients:
            for part, split in (("training", client.train), ("test", client.test)):
                _check_split(f"{self.name}: {part} data of client '{client.name}'", split, shape, dtype, self.classes)

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        told = ", ".join(f"{client.name} {len(client.train)}+{len(client.test)}" for client in self.clients)
        shape = "x".join(map(str, self.shape))
        return f"Federation('{self.name}', {len(self.classes)} classes, samples of {shape}, train+test: {told})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.clients)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width) or (columns,)."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def sizes(self) -> Tensor:
        """Training samples per client (int64)."""
        return torch.tensor([len(c.train) for c in self.clients])

    @property
    def weights(self) -> Tensor:
        """n_i / N from the training sizes (float64): the weights of aggregation and averages."""
        return self.sizes.double() / self.sizes.sum()

    def counts(self, part: str = "all") -> Tensor:
        """Samples per client and class [client, class], of ``train``, ``test`` or ``all``."""
        rows = []
        for client in self.clients:
            train, test = (torch.bincount(s.y.cpu(), minlength=len(self.classes)) for s in (client.train, client.test))
            rows.append({"train": train, "test": test, "all": train + test}[part])
        return torch.stack(rows)

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with every sample on ``device``."""
        return replace(self, clients=tuple(c.to(device) for c in self.clients))

    def digest(self) -> str:
        """A checksum of what training sees: clients, classes, columns and every sample, in order."""
        found = hashlib.sha256(json.dumps([self.names, self.classes, self.columns]).encode())
        for client in self.clients:
            for tensor in (client.train.x, client.train.y, client.test.x, client.test.y):
                found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.cpu().contiguous().numpy().data)
        return found.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Everything ``feddrm data info`` prints, as plain values."""
        return {
            "name": self.name,
            "source": self.source,
            "settings": dict(self.settings),
            "sample_shape": list(self.shape),
            "classes": list(self.classes),
            "clients": [
                {
                    "name": client.name,
                    "train": len(client.train),
                    "test": len(client.test),
                    "shift": client.shift,
                    "class_counts": counts,
                }
                for client, counts in zip(self.clients, self.counts().tolist(), strict=True)
            ],
            "train": int(self.sizes.sum()),
            "test": sum(len(c.test) for c in self.clients),
        }

    @classmethod
    def from_arrays(cls, clients: Arrays, **options: Any) -> Federation:
        """Bring your own arrays: ``{"oslo": (X, y), "lima": (X, y)}``; see :mod:`feddrm.data.sources.build`."""
        from feddrm.data.sources.build import from_arrays

        return from_arrays(clients, **options)

    @classmethod
    def from_folders(cls, root: str | Path, **options: Any) -> Federation:
        """Bring your own images: one folder per client, class sub-folders; see :mod:`feddrm.data.sources.build`."""
        from feddrm.data.sources.build import from_folders

        return from_folders(root, **options)

    @classmethod
    def from_csv(cls, paths: Paths, **options: Any) -> Federation:
        """Bring your own tables: one file per client, or one with a client column."""
        from feddrm.data.sources.build import from_csv

        return from_csv(paths, **options)


def check_clients(where: str, names: Sequence[str]) -> None:
    """Client names become folder names and router columns: at least two, distinct, and safe."""
    if len(names) < 2:
        raise FeddrmError(f"{where}: a federation needs at least two clients, got {len(names)}: add another")
    seen: dict[str, str] = {}
    for name in names:
        if not name.strip() or name in {".", ".."} or not name.isprintable() or any(c in name for c in "/\\"):
            raise FeddrmError(f"{where}: client name {name!r} cannot name a folder: use letters, digits, '-' or '_'")
        if "," in name:  # lists of clients are written with commas: ?without=lima,pune, --clients, the audit log
            raise FeddrmError(f"{where}: client name {name!r} has a comma, which parts names: use '-' or '_' instead")
        if len(name.encode()) > LONGEST_NAME:
            raise FeddrmError(
                f"{where}: client name '{name[:20]}...' has {len(name.encode())} bytes: use at most {LONGEST_NAME}"
            )
        # Folders on many disks do not tell upper case from lower, nor 'ü' in one character from 'ü' in two.
        if (folded := unicodedata.normalize("NFC", name.casefold())) in seen:
            raise FeddrmError(f"{where}: duplicate client name '{name}' (also '{seen[folded]}'): rename one of them")
        seen[folded] = name


def _check_split(where: str, split: Split, shape: torch.Size, dtype: torch.dtype, classes: Sequence[str]) -> None:
    if len(split) == 0:
        raise FeddrmError(f"{where} is empty: drop the client or give it more samples")
    if len(split.x) != len(split.y):
        raise FeddrmError(f"{where} has {len(split.x)} samples but {len(split.y)} labels")
    if split.x.shape[1:] != shape or split.x.dtype != dtype:
        raise FeddrmError(
            f"{where} has samples of shape {tuple(split.x.shape[1:])} ({split.x.dtype}), "
            f"the first client {tuple(shape)} ({dtype}): bring all to one shape"
        )
    low, high = int(split.y.min()), int(split.y.max())
    if low < 0 or high >= len(classes):
        raise FeddrmError(f"{where} has label {low if low < 0 else high}, outside the {len(classes)} classes")
