"""Which artifact a gateway serves: ``serving.json`` of a run, once a challenger was promoted or rolled back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import RunFiles
from feddrm.io.run_reader import refuse_folder_of_runs
from feddrm.io.text import json_bytes, read_json
from feddrm.router.artifact import MANIFEST

REMEDY = "put it back, or delete serving.json to serve the run's own router"


@dataclass(frozen=True)
class ServingState:
    """The folder of the promoted artifact, the one served before (None: the run's own), and what was rolled back."""

    artifact: str | None = None
    former: str | None = None
    rolled_back: str | None = None  # version: a challenger that is not tried again

    @classmethod
    def read(cls, run: Path) -> ServingState:
        path = RunFiles(run).serving_file
        if not path.exists():
            return cls()
        values = read_json(path, REMEDY)
        if set(values) - set(asdict(cls())) or any(not isinstance(v, str | None) for v in values.values()):
            raise FeddrmError(f"{path} is no gateway's state ({json.dumps(values)[:80]}): {REMEDY}")
        return cls(**values)

    def write(self, run: Path) -> None:
        write_atomically(RunFiles(run).serving_file, json_bytes(asdict(self)))

    def folder(self, run: Path) -> Path:
        """The folder of the served artifact."""
        if self.artifact is None:
            return RunFiles(run).router
        if not (Path(self.artifact) / MANIFEST).is_file():
            raise FeddrmError(f"{RunFiles(run).serving_file} names the router {self.artifact}, which is gone: {REMEDY}")
        return Path(self.artifact)

    def promoted(self, folder: Path) -> ServingState:
        return ServingState(str(folder.resolve()), self.artifact)

    def restored(self, version: str) -> ServingState:
        """The artifact before the promoted one, which had this version."""
        return ServingState(self.former, None, version)


def artifact_folder(path: Path) -> Path:
    """The router's folder: the path itself, or ``router`` in it if it is a run's."""
    refuse_folder_of_runs(path)
    own = RunFiles(path).router
    return own if (own / MANIFEST).is_file() else path
