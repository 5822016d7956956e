"""Samples from JSON files in the layout of LEAF: users, and the samples x and y of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddrm.data.sources.arrays import ArraySource
from feddrm.data.sources.labelled_samples import FederationParts
from feddrm.errors import FeddrmError, quoted, short_list
from feddrm.io.text import read_json

LAYOUT = "LEAF has folders train and test with .json files of users and user_data"


@dataclass(frozen=True, eq=False)
class LeafSource:
    """A folder with ``train`` and perhaps ``test``, each with .json files ``{users, user_data: {user: {x, y}}}``.

    Every user is a client. ``shape`` is that of one sample, if x holds flat lists: [28, 28] makes grey images. Without
    a folder ``test`` a part of every client's samples is split off. Users with fewer than ``least`` training samples
    are left out.
    """

    path: str | Path
    _: KW_ONLY
    shape: Sequence[int] | None = None
    least: int = 2
    test_fraction: float = 0.3
    seed: int = 2025
    name: str | None = None

    def load(self) -> FederationParts:
        root = Path(self.path)
        train = self._users(root / "train")
        few = [user for user, (_, y) in train.items() if len(y) < self.least]
        train = {user: pair for user, pair in train.items() if user not in few}
        if not train:
            raise FeddrmError(f"{root / 'train'} has no user with {self.least} samples: give a smaller 'least'")
        test = None
        if (root / "test").exists():
            test = {user: pair for user, pair in self._users(root / "test").items() if user not in few}
            if apart := sorted(set(train) ^ set(test)):
                raise FeddrmError(
                    f"{root}: {short_list(apart, 3)} has samples in only one of train and test: divide by sample "
                    f"(LEAF's '-t sample'), so that every user has both"
                )
        parts = ArraySource(
            train, test=test, test_fraction=self.test_fraction, seed=self.seed, name=self.name or root.resolve().name
        ).load()
        return FederationParts(**{**vars(parts), "source": str(root)})

    def _users(self, folder: Path) -> dict[str, tuple[Any, list[Any]]]:
        files = sorted(folder.glob("*.json")) if folder.is_dir() else []
        if not files:
            raise FeddrmError(f"{folder} holds no .json file: {LAYOUT}")
        users: dict[str, tuple[Any, list[Any]]] = {}
        for file in files:
            content = read_json(file, f"give files as LEAF writes them: {LAYOUT}")
            samples = content.get("user_data")
            if not isinstance(samples, Mapping):
                raise FeddrmError(f"{file} has no user_data: {LAYOUT}")
            for user, pair in samples.items():
                if user in users:
                    raise FeddrmError(f"{file}: user '{user}' is in another file, too: put its samples together")
                users[user] = self._samples(f"{file}: user '{user}'", pair)
        return users

    def _samples(self, where: str, pair: Any) -> tuple[Any, list[Any]]:
        if not isinstance(pair, Mapping) or not {"x", "y"} <= set(pair):
            raise FeddrmError(f"{where} has no x and y: {LAYOUT}")
        if not isinstance(pair["y"], list):
            raise FeddrmError(f"{where}: y is {quoted(pair['y'])}, no list: give one label per sample")
        try:
            x = np.array(pair["x"], dtype=np.float64)
            return (x if self.shape is None else x.reshape(len(x), *self.shape)), list(pair["y"])
        except (ValueError, TypeError, OverflowError) as error:
            wanted = "numbers" if self.shape is None else f"numbers of shape {list(self.shape)}"
            raise FeddrmError(
                f"{where}: x is no list of samples with {wanted} ({error}): correct it or 'shape'"
            ) from error
