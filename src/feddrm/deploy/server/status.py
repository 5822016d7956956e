"""The server's status files, for ``feddrm deploy status``: ``status.json`` and ``complaints.log`` in its folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, read_json

STATUS, COMPLAINTS = "status.json", "complaints.log"
JOB = "job.json"  # exists while a run is wanted


class ServerStatus:
    """Writes the server's events to the two files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logged = folder, set[str]()

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Replace the status. A complaint is only logged, once per text; a failure is logged every time."""
        if event == "failed" or (event == "complaint" and details["text"] not in self.logged):
            with (self.folder / COMPLAINTS).open("a") as file:
                file.write(f"{time.strftime('%F %T')} {details['text']}\n")
            self.logged.add(details["text"])
        if event != "complaint":
            entry = {"time": time.time(), "what": event, **details}
            write_atomically(self.folder / STATUS, json_line(entry))


def read_status(folder: Path) -> dict[str, Any] | None:
    """The last status of the server, None before its first."""
    path = folder / STATUS
    return read_json(path, "remove it: the server writes it again") if path.exists() else None


def last_complaint(folder: Path) -> str | None:
    """The last line of the log of complaints."""
    path = folder / COMPLAINTS
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[-1] if lines else None
