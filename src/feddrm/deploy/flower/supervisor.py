"""A supervisor of one Flower process: it starts the process again whenever it ends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

FLOWER_LOG = "flower.log"
LONGEST_PAUSE = 10.0
PR_SET_PDEATHSIG = 1


class Supervisor:
    """Starts a command, and starts it again after a growing pause whenever it ends, until :meth:`stop`.

    The pauses are needed because a SuperLink refuses a SuperNode that comes back within a minute of being
    killed. The process ends with this one. On Linux the kernel does that even if this process is killed.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command, self.folder = command, folder
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / ".flwr")}
        self.environment = {**os.environ, **quiet}
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._supervise, daemon=True)
        self.thread.start()

    def _supervise(self) -> None:
        pause, last_reason = 1.0, ""
        while not self.stopping.is_set():
            began = time.monotonic()
            with (self.folder / FLOWER_LOG).open("ab") as log:
                start = log.tell()
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                    preexec_fn=_end_with_parent,
                )  # fmt: skip
            code = self.process.wait()
            reason = _exit_reason(self.folder / FLOWER_LOG, start) or f"status {code}, without a word"
            if not self.stopping.is_set() and reason != last_reason:  # the same reason is logged once
                print(f"Flower's process ended and is started again: {reason}", file=sys.stderr, flush=True)
                last_reason = reason
            pause = 1.0 if time.monotonic() - began > 60 else min(2 * pause, LONGEST_PAUSE)
            self.stopping.wait(pause)

    def stop(self) -> None:
        self.stopping.set()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.thread.join(timeout=5)


def _exit_reason(log: Path, start: int) -> str:
    """The text that Flower logs after its exit code; the last line of the log if there is none."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace").strip()
    reasons = re.findall(r"Exit Code: \d+\n(.+?)(?:\n\n|$)", text, flags=re.DOTALL)
    return " ".join(reasons[-1].split()) if reasons else text.rpartition("\n")[2]


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
