"""A PostgreSQL server of our own, for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOUND = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
USER = "postgres"  # the server refuses to run as root


class Cluster:
    """Its files and its socket lie in one folder; it listens nowhere else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, FOUND[-1].parent
        self.url = f"postgresql://{USER}@/postgres?host={folder}"
        self._run("initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "--no-sync")

    def _run(self, program: str, *words: object) -> None:
        before = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        command = [*before, str(self.bin / program), *map(str, words)]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self._run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-o", options, "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")


@contextmanager
def cluster() -> Iterator[Cluster]:
    # Not in pytest's folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="feddrm-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER, USER)
        made = Cluster(folder)
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder)
