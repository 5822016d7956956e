"""The files that tell what the server does: ``status.json``, ``complaints.log`` and ``events.jsonl`` in its folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from feddrm.deploy.process_lock import LOCK
from feddrm.deploy.records.event_log import EventLog
from feddrm.deploy.rotating_log import LOG, RotatingLog, last_line, log
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
REWRITTEN = "remove it: the server writes it again"
STOPPED = f"it has stopped without a result: see {LOG}, free the disk if it is full, then 'feddrm deploy run' goes on"


class ServerStatus:
    """Writes the server's events to the three files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logged = folder, dict[str, float]()  # complaints, and when they were logged last
        self.entry: dict[str, Any] = {}  # the last status
        self.begun: dict[str, Any] = {}  # what every status says while a run goes on: how many rounds it has
        self.events = EventLog(folder)
        self.last: dict[tuple[str, Any], Mapping[str, Any]] = {}  # the last event of a kind, by site

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Write an event, and replace the status where it shows the event. A complaint is written once per start.

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
            self.logged[details["text"]] = time.time()
        if event == "run started":
            self.begun = {"rounds": details["rounds"]}
        if event in SHOWN:
            self._write({"what": SHOWN[event], **self.begun, **details})
        if event in ("finished", "failed"):
            self.begun = {}

    def _is_news(self, event: str, details: Mapping[str, Any]) -> bool:
        if event == "complaint":
            return self.logged.get(details["text"], -1.0) < last_start(self.folder)
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
    status = read_json(path, REWRITTEN) if path.exists() else {}
    return status if status and status.get("run", run) == run else None


def why_stopped(folder: Path, run: str, begun: bool) -> str | None:
    """Why nobody works on an unfinished run of a server; None while somebody does, and before it has ``begun``."""
    if (folder / JOB).exists():
        return None
    status = read_status(folder, run) or {}
    if status.get("what") == "failed":
        return str(status["text"])
    return STOPPED if begun else None


def last_start(folder: Path) -> float:
    """When the server, or the run that it works on, was started last; a run that has finished is over.

    What was told before may have been corrected. It is a whole second, as in the logs.
    """
    times = [0.0]
    for path in (folder / LOCK, folder / JOB):
        with suppress(FileNotFoundError):  # a job goes when its run ends
            times.append(path.stat().st_mtime)
    with suppress(FeddrmError):  # a status that cannot be read says nothing
        status = read_json(folder / STATUS, REWRITTEN)
        times.append(status.get("time", 0.0) if status.get("what") == "finished" else 0.0)
    return float(int(max(times)))


def last_complaint(folder: Path) -> str | None:
    """The last complaint since the last start; older ones stay in the log."""
    return last_line(folder / COMPLAINTS, last_start(folder))
