"""Runs commands in processes of their own, started by fork (see tests/zygote.py)."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any


@functools.cache
def zygote() -> Callable[..., Any]:
    """A function that starts processes (see tests/zygote.py) and returns their exit codes: one for all tests."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    one_at_a_time = threading.Lock()

    def order(**words: Any) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        with one_at_a_time:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

    def stop() -> None:
        assert process.stdin is not None
        with process:
            process.stdin.close()

    atexit.register(stop)
    return order


def feddrm_command(*words: object, **options: Any) -> CompletedProcess[str]:
    """What ``python -m feddrm WORDS`` does, without the seconds that its imports take."""
    return _run(words, {}, **options)


def python_module(name: str, *words: object, **options: Any) -> CompletedProcess[str]:
    """What ``python -m NAME WORDS`` does, likewise."""
    script = f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    return _run(words, {"script": script}, **options)


def _run(words: Sequence[object], script: dict[str, str], cwd: Path | None = None) -> CompletedProcess[str]:
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out", Path(folder) / "log"
        files = {"out": str(out), "log": str(log), "cwd": str(cwd or Path.cwd())}
        code = wait(zygote()(words=command, environment=dict(os.environ), **files, **script), log)
        return CompletedProcess(["feddrm", *command], code, out.read_text(), log.read_text())


def wait(pid: int, log: Path = Path(os.devnull), seconds: float = 300) -> int:
    """The exit code of a process that the zygote has started, when it ends."""
    until = time.monotonic() + seconds
    while (code := zygote()(pid=pid)) is None:
        assert time.monotonic() < until, f"process {pid} still runs: {log.read_text()}"
        time.sleep(0.01)
    return int(code)
