"""Runs ``feddrm`` commands in processes of their own, started by fork (see tests/zygote.py)."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess

from serving import zygote


def feddrm_command(*words: object, cwd: Path | None = None, seconds: float = 300) -> CompletedProcess[str]:
    """What ``python -m feddrm WORDS`` does, without the seconds that its imports take."""
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out", Path(folder) / "log"
        files = {"out": str(out), "log": str(log), "cwd": str(cwd or Path.cwd())}
        pid = zygote()(words=command, environment=dict(os.environ), **files)
        until = time.monotonic() + seconds
        while (code := zygote()(pid=pid)) is None:
            assert time.monotonic() < until, f"{command} still runs: {log.read_text()}"
            time.sleep(0.01)
        return CompletedProcess(["feddrm", *command], code, out.read_text(), log.read_text())
