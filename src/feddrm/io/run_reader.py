"""Reads the JSON files of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError
from feddrm.io.run_files import CONFIG, RunFiles
from feddrm.io.staging import Snapshot
from feddrm.io.text import read_config, read_json, read_json_lines

REMEDY = "run the training again"


class RunReader(RunFiles):
    """The files of one run, and how its figures are read. ``feddrm.runs.RunFolder`` also writes."""

    def config(self) -> dict[str, Any]:
        """The run's settings. A folder that is no run is refused."""
        refuse_folder_of_runs(self.path)
        if not self.config_file.exists():
            raise FeddrmError(f"{self.path} is no run (it has no config.yaml): give a folder made by 'feddrm train'")
        config = read_config(self.config_file)
        parts = {"evaluation": {}, **config}  # a deployed run has no settings of evaluation
        for part in ("data", "method", "model", "evaluation"):
            if not isinstance(parts.get(part), dict):
                raise FeddrmError(f"{self.config_file} has no settings under '{part}': put it back as it was")
        return config

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per evaluated round; a last line that a crash cut short is left out."""
        return read_json_lines(self.metrics_file, REMEDY) if self.metrics_file.exists() else []

    def summary(self) -> dict[str, Any] | None:
        """The content of ``summary.json``; None until the run is finished."""
        return self.read_json(self.summary_file)

    def read_json(self, file: Path) -> dict[str, Any] | None:
        """Read one of the run's JSON files; None if there is none."""
        now = Snapshot.of(self.router)
        return now.read(file, lambda path: read_json(path, REMEDY)) if now.has(file) else None


def refuse_folder_of_runs(path: Path) -> None:
    """Refuse a folder that is no run but holds some, as of several seeds; others say what they miss in it."""
    if (path / CONFIG).exists():
        return
    if runs := sorted(file.parent for pattern in ("*", "*/*") for file in path.glob(f"{pattern}/{CONFIG}")):
        names = ", ".join(str(run.relative_to(path)) for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
        raise FeddrmError(f"{path} is no run but holds {len(runs)} ({names}): name one, such as {runs[0]}")
