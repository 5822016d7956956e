"""A user's own files as datasets, so that commands and configuration files can name them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from feddrm.data.crop import RandomResizedCrop
from feddrm.data.datasets.base import Dataset
from feddrm.data.federation import Federation
from feddrm.data.sources.csv_tables import AUTO, check_outcome
from feddrm.data.sources.labelled_samples import Division
from feddrm.errors import SettingError


@dataclass(frozen=True)
class UserDataset(Dataset):
    """Files of the user. ``path`` has no default, so ``check`` asks for it."""

    path: str = ""
    test_fraction: float = 0.3

    def check(self) -> None:
        super().check()
        Division.checked(self.name, self.test_fraction, self.seed)
        if not self.path:
            raise SettingError(f"'{self.name}' needs to know where your data are: give path (--set data.path=...)")

    def settings(self) -> dict[str, Any]:
        # An absolute path, so that a later command finds the files from any folder.
        settings = super().settings() | {"path": str(Path(self.path).resolve())}
        return {key: value for key, value in settings.items() if value not in (None, "", (), [])}


@dataclass(frozen=True)
class Folders(UserDataset):
    """Your own images: one folder per client with class sub-folders (--set data.path=...)"""

    name: ClassVar[str] = "folders"
    size: int | None = None
    crop: bool = False  # train on random crops, and allow crops of queries
    mirrors: bool = False  # a mirror image has the same class
    subject: str = ""  # a regular expression: its first group in a file's name says whom the image is of

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in super().settings().items() if value is not False}

    def load(self) -> Federation:
        made = Federation.from_folders(
            self.path,
            size=self.size,
            subject=self.subject or None,
            test_fraction=self.test_fraction,
            seed=self.seed,
        )
        return replace(made, crop=RandomResizedCrop() if self.crop else None, mirrors=self.mirrors)


@dataclass(frozen=True)
class Npz(UserDataset):
    """Your own arrays: a folder with one .npz per client (x, y), or one with an array client (--set data.path=...)"""

    name: ClassVar[str] = "npz"
    test: str = ""  # the same form as path; if empty, a part of every client's samples is split off

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({"test": str(Path(self.test).resolve())} if self.test else {})

    def load(self) -> Federation:
        return Federation.from_npz(self.path, test=self.test or None, test_fraction=self.test_fraction, seed=self.seed)


@dataclass(frozen=True)
class Leaf(UserDataset):
    """Your own files in the layout of LEAF: folders train and test, every user a client (--set data.path=...)"""

    name: ClassVar[str] = "leaf"
    shape: tuple[int, ...] = ()  # of one sample, where files hold flat lists: [28, 28]
    least: int = 2  # training samples of a user who takes part

    def load(self) -> Federation:
        return Federation.from_leaf(
            self.path, shape=self.shape or None, least=self.least, test_fraction=self.test_fraction, seed=self.seed
        )


@dataclass(frozen=True)
class Csv(UserDataset):
    """Your own tables, csv or parquet: one file per client, or one file with a client column (--set data.path=...)"""

    name: ClassVar[str] = "csv"
    label: str = ""
    time: str = ""  # for survival, instead of label: the column of the days of follow-up
    event: str = ""  # and the column of 1 where the event was seen, else 0
    intervals: int | None = None  # of survival, by quantiles of the event times (10)
    edges: tuple[int, ...] = ()  # or the last day of every interval
    client: str | None = None
    drop: tuple[str, ...] = ()
    test: str = ""  # the same form as path; if empty, a part of every client's rows is split off
    schema: str = ""  # a schema file, by which all clients' rows are encoded, or auto: one from sums over all clients
    categories: tuple[str, ...] = ()  # with schema=auto: columns of codes that are no measurement
    subject: str = ""  # the column that says whom a row is of: a subject's rows are not divided

    def check(self) -> None:
        super().check()
        check_outcome(self.name, self.label, self.time, self.event, self.intervals, self.edges)

    def settings(self) -> dict[str, Any]:
        paths = {key: str(Path(path).resolve()) for key, path in (("test", self.test), ("schema", self.schema)) if path}
        paths |= {"schema": self.schema} if self.schema == AUTO else {}
        return super().settings() | paths

    def load(self) -> Federation:
        return Federation.from_csv(
            self.path,
            label=self.label,
            time=self.time,
            event=self.event,
            intervals=self.intervals,
            edges=self.edges,
            client=self.client,
            test=self.test or None,
            drop=self.drop,
            schema=self.schema or None,
            categories=self.categories,
            subject=self.subject or None,
            test_fraction=self.test_fraction,
            seed=self.seed,
        )
