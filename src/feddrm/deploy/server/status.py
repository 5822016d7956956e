"""The server's status files, for ``feddrm deploy status``: ``status.json`` and ``complaints.log`` in its folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddrm.deploy.rotating_log import RotatingLog, log
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, read_json

STATUS, COMPLAINTS = "status.json", "complaints.log"
LOGGED = ("complaint", "failed", "away", "returned")  # events that go to the log of complaints
JOB = "job.json"  # exists while a run is wanted


class ServerStatus:
    """Writes the server's events to the two files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logged = folder, set[str]()
        self.entry: dict[str, Any] = {}  # the last status

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Replace the status. Complaints and sites that go or come back are only logged, complaints once per text.

        ``outstanding`` says whose answers are missing. It only changes that part of the status.
        """
        if event in LOGGED and not (event == "complaint" and details["text"] in self.logged):
            complaints = RotatingLog(self.folder / COMPLAINTS)
            complaints.line(details["text"])
            complaints.close()
            log.log(logging.INFO if event == "returned" else logging.WARNING, details["text"])
            self.logged.add(details["text"])
        if event == "outstanding":
            self._write({**(self.entry or {"what": "starting"}), **details})
        elif event not in LOGGED or event == "failed":
            self._write({"what": event, **details})

    def _write(self, entry: Mapping[str, Any]) -> None:
        self.entry = {**entry, "time": time.time()}
        write_atomically(self.folder / STATUS, json_line(self.entry))


def read_status(folder: Path) -> dict[str, Any] | None:
    """The last status of the server, None before its first."""
    path = folder / STATUS
    return read_json(path, "remove it: the server writes it again") if path.exists() else None


def last_complaint(folder: Path) -> str | None:
    """The last line of the log of complaints."""
    path = folder / COMPLAINTS
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[-1] if lines else None
