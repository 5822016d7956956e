"""The event log of a server or a site: one JSON object per line, in files of limited size."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from feddrm.deploy.rotating_log import RotatingLog
from feddrm.io.text import read_json_lines

EVENTS = "events.jsonl"
LONG = 1000  # bytes of a long event

_lock = threading.Lock()  # several threads of a process write to one log, each through its own object


class _PrivateLog(RotatingLog):
    """A log that only its owner can read."""

    def _open(self) -> TextIOWrapper:
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(file, "a", encoding="utf-8")


class EventLog:
    """Appends events to ``events.jsonl`` in a folder. An event never holds a sample, a label or a private leaf."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS

    def write(self, event: str, details: Mapping[str, Any]) -> None:
        """Append one event. Details that are None are left out."""
        known = {key: value for key, value in details.items() if value is not None}
        line = json.dumps({"time": round(time.time(), 3), "event": event, **known}, ensure_ascii=False)
        with _lock:
            log = _PrivateLog(self.path)  # opened for each line: another object may have begun a new file
            log.setFormatter(logging.Formatter())
            log.line(line.encode(errors="backslashreplace").decode())
            log.close()


def read_events(folder: Path, last: int | None = None) -> list[dict[str, Any]]:
    """The events of a folder's current file, or at most the ``last`` of them; none before the first."""
    path = folder / EVENTS
    if not path.exists():
        return []
    if last is None:
        return read_json_lines(path, "move it away: a new one is begun")
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - last * LONG))
        lines = file.read().split(b"\n")[:-1]
    return [json.loads(line) for line in lines[size > last * LONG :][-last:]]  # the first may be cut
