"""The state of a training for ``feddrm deploy watch`` and its page, from the files that the server writes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddrm.deploy.process_lock import running
from feddrm.deploy.records.event_log import read_events
from feddrm.deploy.server.federation_file import read_members
from feddrm.deploy.server.status import last_complaint, last_start, read_status, why_stopped
from feddrm.io.run_reader import RunReader
from feddrm.io.text import read_config

ROUNDS, EVENTS = 20, 200  # how many of the latest are looked at
SHOWN_EVENTS = 15
NO_ANSWER = "it has not answered yet"


def watch_state(server: Path) -> dict[str, Any]:
    """What the server does, whom it waits for and why, every site, and the latest rounds and events."""
    run, clients = read_members(server)
    folder = RunReader(server / "runs" / run)
    history, summary = folder.metrics(), folder.summary()
    status, process = read_status(server, run) or {}, running(server)
    events = read_events(server, EVENTS)
    # A site that is missing for long is told once, so its event may be among older ones; every round has the reason.
    missing = history[-1].get("missing", {}) if history else {}
    start = last_start(server)
    current = [event for event in events if event["time"] >= start]
    last = {name: {"reason": reason} for name, reason in missing.items()} | last_by_site(current)
    waiting = status.get("waiting", {}) if process is not None and summary is None else {}
    return {
        "time": time.time(),
        "run": run,
        "running": process is not None,
        "what": _activity(status, summary, process),
        "failed": why_stopped(server, run, bool(history)) if summary is None else None,
        "finished": summary is not None,
        "round": history[-1]["round"] if history else 0,
        "rounds": read_config(folder.config_file)["rounds"] if folder.config_file.exists() else None,
        "waiting": [
            {"site": name, "since": since, "reason": last.get(name, {}).get("reason", NO_ANSWER)}
            for name, since in waiting.items()
        ],
        "sites": [_site(name, history, last.get(name, {})) for name in clients],
        "history": history[-ROUNDS:],
        "accuracy": (summary or {}).get("average_accuracy"),
        "complaint": last_complaint(server),
        "events": events[-SHOWN_EVENTS:],
    }


def _activity(status: Mapping[str, Any], summary: Mapping[str, Any] | None, process: int | None) -> str:
    if summary is not None:
        return "finished"
    if process is None:
        return "the server does not run here: start it with 'feddrm deploy up'"
    step = f", message {status['step']} ({status['question']})" if "question" in status else ""
    return f"{status.get('what', 'not begun')}{step}"


def last_by_site(events: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last answer of every site, or why there is none."""
    return {event["site"]: event for event in events if event["event"] in ("site answered", "site missing")}


def _site(name: str, history: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> dict[str, Any]:
    spent = [entry["epsilon"][name] for entry in history if name in entry.get("epsilon", {})]
    return {
        "site": name,
        "asked": sum(name in entry["asked"] for entry in history),
        "answered": sum(name in entry["answered"] for entry in history),
        "bytes_sent": sum(entry["bytes_sent"].get(name, 0) for entry in history),
        "bytes_received": sum(entry["bytes_received"].get(name, 0) for entry in history),
        "seconds": last.get("seconds"),
        "loss": last.get("loss"),
        "reason": last.get("reason"),  # why its last answer is missing
        "epsilon": spent[-1] if spent else None,
    }
