"""One client of a federation: its name, its samples, and its view of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from feddrm.data.view import View
from feddrm.errors import FeddrmError

MAX_NAME_BYTES = 200  # a folder's name may have 255 bytes; a temporary name adds some


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and labels: uint8 images [n, channels, height, width] or float32 rows [n, columns]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:  # short: a notebook would print every tensor
        return f"Split({len(self)} samples of {'x'.join(map(str, self.x.shape[1:]))})"

    def to(self, device: torch.device | str) -> Split:
        return Split(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, eq=False)
class Client:
    """One participant: its training and test samples, and its view of a raw sample."""

    name: str
    train: Split
    test: Split
    view: View = field(default_factory=View)
    shift: str = "none"

    def to(self, device: torch.device | str) -> Client:
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def check_client_names(where: str, names: Sequence[str]) -> None:
    """Check that there are at least two names, all distinct, and that each can name a folder and a router column."""
    if len(names) < 2:
        raise FeddrmError(f"{where}: a federation needs at least two clients, got {len(names)}: add another")
    seen: dict[str, str] = {}
    for name in names:
        if not name.strip() or name in {".", ".."} or not name.isprintable() or any(c in name for c in "/\\"):
            raise FeddrmError(f"{where}: client name {name!r} cannot name a folder: use letters, digits, '-' or '_'")
        if "," in name:  # a comma separates the names in ?without=lima,pune, in --clients and in the audit log
            raise FeddrmError(
                f"{where}: client name {name!r} has a comma, which separates names in a list: use '-' or '_' instead"
            )
        if (size := len(name.encode())) > MAX_NAME_BYTES:
            raise FeddrmError(f"{where}: client name '{name[:20]}...' has {size} bytes: use at most {MAX_NAME_BYTES}")
        # Many file systems ignore case, and treat 'ü' as one character and as two characters alike.
        if (folded := unicodedata.normalize("NFC", name.casefold())) in seen:
            raise FeddrmError(f"{where}: duplicate client name '{name}' (also '{seen[folded]}'): rename one of them")
        seen[folded] = name
