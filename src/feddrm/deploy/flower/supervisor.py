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
from collections import deque
from collections.abc import Callable
from pathlib import Path

from feddrm.deploy.rotating_log import RotatingLog, log

FLOWER_LOG = "flower.log"
NOTE = "feddrm: "  # begins a line that the process writes for its supervisor
LONGEST_PAUSE = 10.0
PR_SET_PDEATHSIG = 1


def note(text: str) -> None:
    """Tell the supervisor of this process something. It is written at once, so that notes of two threads stay apart."""
    print(f"{NOTE}{text}\n", end="", flush=True)


class Supervisor:
    """Starts a command, and starts it again after a growing pause whenever it ends, until :meth:`stop`.

    The pauses are needed because a SuperLink refuses a SuperNode that comes back within a minute of being
    killed. The process ends with this one. On Linux the kernel does that even if this process is killed.
    What it prints goes to ``flower.log``; ``on_note`` is called with what it tells by :func:`note`. Only their owner
    can read the files that it makes, because Flower's database holds what sites send.
    """

    def __init__(self, command: list[str], folder: Path, on_note: Callable[[str], None] = log.info) -> None:
        self.command, self.on_note, self.log = command, on_note, RotatingLog(folder / FLOWER_LOG)
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / ".flwr")}
        self.environment = {**os.environ, **quiet}
        self.process: subprocess.Popen[str] | None = None
        self.stopping, self.restarting = threading.Event(), False
        self.thread = threading.Thread(target=self._supervise, daemon=True)
        self.thread.start()

    def _supervise(self) -> None:
        pause, last_reason = 1.0, ""
        while not self.stopping.is_set():
            began = time.monotonic()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", env=self.environment, umask=0o077, preexec_fn=_end_with_parent,
            )  # fmt: skip
            reason = self._copy_output(self.process)
            code = self.process.wait()
            reason = reason or f"status {code}, without a word"
            if not self.stopping.is_set() and not self.restarting and reason != last_reason:  # logged once
                log.warning("Flower's process ended and is started again: %s", reason)
                last_reason = reason
            self.restarting = False
            pause = 1.0 if time.monotonic() - began > 60 else min(2 * pause, LONGEST_PAUSE)
            self.stopping.wait(pause)

    def _copy_output(self, process: subprocess.Popen[str]) -> str:
        """Log what the process prints until it ends; returns the reason that it gives for its end."""
        last: deque[str] = deque(maxlen=200)
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                last.append(line.rstrip())
                if line.startswith(NOTE):
                    self.on_note(last[-1].removeprefix(NOTE))
                elif last[-1]:
                    self.log.line(last[-1])
        return _exit_reason("\n".join(last).strip())

    def restart(self) -> None:
        """End the process, so that it is started again and reads its files anew."""
        if self.process is not None:
            self.restarting = True
            self.process.terminate()

    def stop(self) -> None:
        self.stopping.set()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.thread.join(timeout=5)
        self.log.close()


def _exit_reason(text: str) -> str:
    """The text that Flower logs after its exit code; the last line if there is none."""
    reasons = re.findall(r"Exit Code: \d+\n(.+?)(?:\n\n|$)", text, flags=re.DOTALL)
    return " ".join(reasons[-1].split()) if reasons else text.rpartition("\n")[2]


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
