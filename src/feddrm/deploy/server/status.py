"""The files that tell what the server does: ``status.json``, ``complaints.log`` and ``events.jsonl`` in its folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from feddrm.deploy.records.event_log import EventLog
from feddrm.deploy.rotating_log import LOG, RotatingLog, log
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, read_json

STATUS, COMPLAINTS = "status.json", "complaints.log"
LOGGED = ("complaint", "failed", "away", "returned")  # events that go to the log of complaints
# What the status says after an event. Events that are not named here, and not logged as complaints, leave it as it is.
SHOWN = {
    "round finished": "training",
    **{e: e for e in ("waiting", "fitting the router", "comparing the sites", "finished", "failed")},
}
REPEATED = ("waiting", "round started", "site missing")  # events that are told again in every attempt
JOB = "job.json"  # exists while a run is wanted
STOPPED = f"it has stopped without a result: see {LOG}, free the disk if it is full, then 'feddrm deploy run' goes on"


class ServerStatus:
    """Writes the server's events to the three files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logged = folder, set[str]()
        self.entry: dict[str, Any] = {}  # the last status
        self.begun: dict[str, Any] = {}  # what every status says while a run goes on: how many rounds it has
        self.events = EventLog(folder)
        self.last: dict[tuple[str, Any], Mapping[str, Any]] = {}  # the last event of a kind, by site

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Write an event, and replace the status where it shows the event. The same complaint is written once.

        ``outstanding`` says whose answers are missing. It is no event, and only changes that part of the status.
        """
        if event == "outstanding":
            self._write({**(self.entry or {"what": "starting"}), **details})
            return
        news = self._is_news(event, details)
        if news:
            self.events.write(event, details)
        if news and event in LOGGED:
            complaints = RotatingLog(self.folder / COMPLAINTS)
            complaints.line(details["text"])
            complaints.close()
            log.log(logging.INFO if event == "returned" else logging.WARNING, details["text"])
            self.logged.add(details["text"])
        if event == "run started":
            self.begun = {"rounds": details["rounds"]}
        if event in SHOWN:
            self._write({"what": SHOWN[event], **self.begun, **details})
        if event in ("finished", "failed"):
            self.begun = {}

    def _is_news(self, event: str, details: Mapping[str, Any]) -> bool:
        if event == "complaint":
            return details["text"] not in self.logged
        site = details.get("site")
        if event == "site answered":
            self.last.pop(("site missing", site), None)
        repeated = event in REPEATED and self.last.get((event, site)) == details
        self.last[event, site] = dict(details)
        return not repeated

    def _write(self, entry: Mapping[str, Any]) -> None:
        self.entry = {**entry, "time": time.time()}
        with suppress(FeddrmError):  # a full disk ends a run with its own reason, not the server
            if (self.folder / JOB).exists():  # the status stays when another run is chosen
                self.entry["run"] = read_json(self.folder / JOB, "start the run again")["run"]
            write_atomically(self.folder / STATUS, json_line(self.entry))


def read_status(folder: Path, run: str) -> dict[str, Any] | None:
    """The last status of a server's run, None before its first. One of an older version may be of any run."""
    path = folder / STATUS
    status = read_json(path, "remove it: the server writes it again") if path.exists() else {}
    return status if status and status.get("run", run) == run else None


def why_stopped(folder: Path, run: str, begun: bool) -> str | None:
    """Why nobody works on an unfinished run of a server; None while somebody does, and before it has ``begun``."""
    if (folder / JOB).exists():
        return None
    status = read_status(folder, run) or {}
    if status.get("what") == "failed":
        return str(status["text"])
    return STOPPED if begun else None


def last_complaint(folder: Path) -> str | None:
    """The last line of the log of complaints."""
    path = folder / COMPLAINTS
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[-1] if lines else None
