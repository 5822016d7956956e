"""Runs commands in processes of their own, started by fork (see tests/zygote.py)."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
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


FEDDRM = "feddrm.cli.app.main()"


def feddrm_command(*words: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """What ``python -m feddrm WORDS`` does, without the seconds that its imports take."""
    return python_script(FEDDRM, *words, cwd=cwd)


def python_script(script: str, *words: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """What ``python -c SCRIPT WORDS`` does, likewise."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out", Path(folder) / "log"
        code = wait(fork(script, words, out, log, cwd), log)
        return CompletedProcess([script, *map(str, words)], code, out.read_text(), log.read_text())


def fork(script: str, words: Iterable[object], out: Path, log: Path, cwd: Path | None = None, **more: Any) -> int:
    """Start a process; returns its number."""
    files = {"out": str(out), "log": str(log), "cwd": str(cwd or Path.cwd())}
    given = {"script": script, "words": [str(word) for word in words], "environment": dict(os.environ)}
    return int(zygote()(**given | files | more))


def exit_code(pid: int) -> int | None:
    """The exit code of such a process; None while it runs."""
    code: int | None = zygote()(pid=pid)
    return code


def wait(pid: int, log: Path = Path(os.devnull), seconds: float = 300) -> int:
    """Its exit code when it ends."""
    until = time.monotonic() + seconds
    while (code := exit_code(pid)) is None:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} still ran: {log.read_text()}")
        time.sleep(0.02)
    return code
