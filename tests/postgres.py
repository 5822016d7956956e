"""A PostgreSQL server for the duration of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
USER = "postgres"  # the server refuses to run as root


class Cluster:
    """A server with its files and its socket in one folder. It listens on no port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, INSTALLED[-1].parent
        self.url = f"postgresql://{USER}@/postgres?host={folder}"
        self._run("initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "--no-sync")

    def _run(self, program: str, *arguments: object) -> None:
        prefix = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        command = [*prefix, str(self.bin / program), *map(str, arguments)]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self._run("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-o", options, "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")


@contextmanager
def cluster() -> Iterator[Cluster]:
    # Not in pytest's folder, which other users cannot enter.
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
