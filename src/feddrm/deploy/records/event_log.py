"""The event log of a server or a site: one JSON object per line, in files of limited size."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddrm.deploy.rotating_log import KEPT, RotatingLog

EVENTS = "events.jsonl"
LONG = 1000  # bytes of a long event

_lock = threading.Lock()  # several threads of a process write to one log, each through its own object


class EventLog:
    """Appends events to ``events.jsonl`` in a folder. An event never holds a sample, a label or a private leaf."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS

    def write(self, event: str, details: Mapping[str, Any]) -> None:
        """Append one event. Details that are None are left out."""
        known = {key: value for key, value in details.items() if value is not None}
        line = json.dumps({"time": round(time.time(), 3), "event": event, **known}, ensure_ascii=False)
        with _lock:
            log = RotatingLog(self.path)  # opened for each line: another object may have begun a new file
            log.setFormatter(logging.Formatter())
            begin = "\n" if _is_cut(self.path) else ""
            log.line(begin + line.encode(errors="backslashreplace").decode())
            log.close()


def _is_cut(path: Path) -> bool:
    """Whether the last line has no end: the process was killed, or the disk was full."""
    with contextlib.suppress(OSError), path.open("rb") as file:  # an empty file, or none
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
    return False


def read_events(folder: Path, last: int | None = None) -> list[dict[str, Any]]:
    """The events of a folder's current file, or at most the ``last`` of them; none before the first."""
    events = _events_of(folder / EVENTS, None if last is None else last * LONG)
    return events if last is None else events[-last:]


def last_event(folder: Path, is_wanted: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
    """The latest event that is wanted, also of the older files; None if none has one."""
    for path in (folder / EVENTS, *(folder / f"{EVENTS}.{number}" for number in range(1, KEPT + 1))):
        if wanted := [event for event in _events_of(path) if is_wanted(event)]:
            return wanted[-1]
    return None


def _events_of(path: Path, end: int | None = None) -> list[dict[str, Any]]:
    """The events of a file, or of its last bytes. Lines that were cut are left out: they must not hide the others."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        if end is not None:
            file.seek(max(0, file.seek(0, os.SEEK_END) - end))
        lines = file.read().split(b"\n")
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events
