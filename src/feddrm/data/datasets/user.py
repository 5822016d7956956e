"""Your own data by name, so that the command line and configuration files can use them too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from feddrm.data.datasets.base import Dataset
from feddrm.data.federation import Federation
from feddrm.data.sources.build import from_csv, from_folders
from feddrm.data.sources.labelled_samples import check_division
from feddrm.errors import SettingError


@dataclass(frozen=True)
class OwnDataset(Dataset):
    """Files of the user's; ``path`` is asked for by name because there is no sensible default."""

    path: str = ""
    test_fraction: float = 0.3

    def check(self) -> None:
        super().check()
        check_division(self.name, self.test_fraction, self.seed)
        if not self.path:
            raise SettingError(f"'{self.name}' needs to know where your data are: give path (--set path=...)")

    def settings(self) -> dict[str, Any]:
        own = super().settings() | {"path": str(Path(self.path).resolve())}  # found again from any folder
        return {key: value for key, value in own.items() if value not in (None, "", (), [])}


@dataclass(frozen=True)
class Folders(OwnDataset):
    """Your own images: one folder per client with class sub-folders (--set path=...)"""

    name: ClassVar[str] = "folders"
    size: int | None = None

    def load(self) -> Federation:
        return from_folders(self.path, size=self.size, test_fraction=self.test_fraction, seed=self.seed)


@dataclass(frozen=True)
class Csv(OwnDataset):
    """Your own tables: a folder with one file per client, or one file with a client column (--set path=...)"""

    name: ClassVar[str] = "csv"
    label: str = ""
    client: str | None = None
    drop: tuple[str, ...] = ()
    test: str = ""  # of the same form as path; empty: a part of every client's rows is held out

    def check(self) -> None:
        super().check()
        if not self.label:
            raise SettingError("'csv' needs to know which column to predict: give label (--set label=...)")

    def settings(self) -> dict[str, Any]:
        own = super().settings()
        return own | {"test": str(Path(self.test).resolve())} if self.test else own

    def load(self) -> Federation:
        return from_csv(
            self.path,
            label=self.label,
            client=self.client,
            test=self.test or None,
            drop=self.drop,
            test_fraction=self.test_fraction,
            seed=self.seed,
        )
