"""Real processes on this machine that serve a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

NAMES = ("flatbed", "negative", "fax")


class Process:
    """A ``feddrm`` command that serves; ``url`` is known once it listens."""

    def __init__(self, words: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "feddrm", *words],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            )

    @property
    def url(self) -> str:
        if not hasattr(self, "_url"):
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert " at http" in line, line + self.log.read_text()
            self._url = line.split()[-1]
        return self._url

    def wait_ready(self, seconds: float = 60) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/v2/health/ready", timeout=5).status_code == 200:
                    return self.url
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


Launch = Callable[..., Process]


def launcher(folder: Path) -> Iterator[Launch]:
    started: list[Process] = []

    def launch(*words: object, **environment: str) -> Process:
        process = Process([str(word) for word in words], folder / f"{len(started)}.log", environment)
        started.append(process)
        return process

    try:
        yield launch
    finally:
        for process in started:
            process.stop()
