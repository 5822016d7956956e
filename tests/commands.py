"""Runs ``feddrm`` commands in processes of their own, started by fork (see tests/zygote.py)."""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess

from serving import Order, zygote


@functools.cache
def _order() -> Order:
    """One process to fork from, for all tests of this worker."""
    manager = zygote()
    order = manager.__enter__()
    atexit.register(manager.__exit__, None, None, None)
    return order


def feddrm_command(*words: object, cwd: Path | None = None, seconds: float = 300) -> CompletedProcess[str]:
    """What ``python -m feddrm WORDS`` does, without the seconds that its imports take."""
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out", Path(folder) / "log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        files = {"out": str(out), "log": str(log), "largest_file": None, "cwd": str(cwd or Path.cwd())}
        pid = _order()(words=command, environment=environment, **files)
        until = time.monotonic() + seconds
        while (code := _order()(pid=pid)) is None:
            assert time.monotonic() < until, f"{command} still runs: {log.read_text()}"
            time.sleep(0.01)
        return CompletedProcess(["feddrm", *command], code, out.read_text(), log.read_text())
