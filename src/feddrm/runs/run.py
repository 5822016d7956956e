"""A run that was trained before: opened, described, and given a router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.data import Federation
from feddrm.errors import FeddrmError
from feddrm.router import Router, load_router
from feddrm.runs.config import read_config
from feddrm.runs.folder import RunFolder
from feddrm.runs.run_router import fit_run_router


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run: its folder, its configuration and, once finished, its summary."""

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open the folder of a run that was trained before."""
        folder = RunFolder(path)
        if not folder.config_file.exists():
            raise FeddrmError(f"{path} is no run (it has no config.yaml): give a folder made by 'feddrm train'")
        config = read_config(folder.config_file)
        for part in ("data", "method", "model", "evaluation"):
            if not isinstance(config.get(part, {}), dict):  # a deployed run has no settings of evaluation
                raise FeddrmError(f"{folder.config_file} has no settings under '{part}': put it back as it was")
        return cls(folder.path, config)

    @property
    def folder(self) -> RunFolder:
        """The run's files."""
        return RunFolder(self.path)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of ``summary.json`` now, with the figures of a fitted router; None until the run is finished."""
        return self.folder.summary()

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per evaluated round."""
        return self.folder.metrics()

    def fit_router(self, federation: Federation | None = None, **settings: Any) -> Router:
        """Fit the exact router into the run's folder; settings as for :func:`feddrm.runs.run_router.fit_run_router`."""
        return fit_run_router(self.folder, self.config, federation, **settings)

    def router(self, device: str = "cpu") -> Router:
        """The router that was fitted before."""
        return load_router(self.folder.router, device)

    def __repr__(self) -> str:
        names = {part: self.config.get(part, {}).get("name") for part in ("data", "method", "model")}
        settings = ", ".join(f"{part}={name!r}" for part, name in names.items())
        return f"Run({str(self.path)!r}, {settings}, {self._progress()})"

    def _progress(self) -> str:
        if (summary := self.summary) is None:
            lines = self.metrics()
            return f"unfinished: round {lines[-1]['round'] if lines else 0} of {self.config.get('rounds')}"
        router = "router" if summary.get("router") else "no router"
        return f"{summary['rounds']} rounds, {router}, average accuracy {summary['average_accuracy']['mean']:.1%}"
