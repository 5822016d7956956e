"""What a site tells its administrator: ``status.json`` (its connection, the last message) and ``events.jsonl``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from feddrm.deploy.records.event_log import EventLog
from feddrm.deploy.rotating_log import log
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, printable_line, read_config, read_json

CONFIG = "site.yaml"
STATUS = "status.json"
CONNECTED = "connected"


class SiteStatus:
    """What a site knows of its federation. It is written by two threads: connection and messages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.values: dict[str, Any] = read_site_status(folder) or {}
        self.events, self.refused = EventLog(folder), ""  # the last refusal that was logged

    def connection(self, text: str) -> None:
        """How the connection is: ``connected``, or why it is not."""
        now = {"connected": text == CONNECTED, "reason": "" if text == CONNECTED else text}
        if now.items() <= self.values.items():
            return  # a SuperNode that starts again says it again
        log.info("connected to the server" if text == CONNECTED else f"not connected: {text}")
        self.events.write("connected" if text == CONNECTED else "not connected", {"reason": now["reason"] or None})
        if text != CONNECTED and self.values.get("waiting"):
            self._write(waiting={})  # it hears of nobody any more
        self._write(**now, since=time.time())

    def message(self, header: Mapping[str, Any], error: str = "") -> None:
        """A message of the server has come; ``error`` is why it was refused."""
        if header.get("kind") == "waiting":  # the server tells whom it waits for, and since when
            self._write(waiting=header["for"])
            return
        if error and error != self.refused:  # where the disk is full, standard error alone has it
            self.refused = error
            log.warning(printable_line(f"refused '{header.get('kind')}': {error}"))
        message = {"kind": header.get("kind"), "run": _run(header), "round": header.get("round"), "time": time.time()}
        self._write(message={**message, "error": error.encode(errors="backslashreplace").decode()}, waiting={})

    def samples(self, warnings: Sequence[str]) -> None:
        """What the samples should be looked at for. Nothing of it is sent."""
        self._write(samples=list(warnings))

    def answered(self, request: Mapping[str, Any], reply: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Write the event of a message that was answered or refused, with the end of the server's audit trail."""
        if request.get("kind") == "waiting":
            return
        about = {"run": _run(request), **{key: request.get(key) for key in ("kind", "step", "round")}}
        figures = {"seconds": reply["seconds"], "loss": reply.get("loss"), "reason": reply.get("error")}
        event = "refused" if "error" in reply else "answered"
        self.events.write(event, {**about, **figures, **sizes, "audit": request.get("audit")})

    def _write(self, **changes: Any) -> None:
        with self.lock:
            self.values |= changes
            with suppress(FeddrmError):  # a full disk stops what needs room, not the connection
                write_atomically(self.folder / STATUS, json_line(self.values), private=True)


def _run(header: Mapping[str, Any]) -> Any:
    spec = header.get("brief")
    return spec.get("run") if isinstance(spec, dict) else None


def read_site_status(folder: Path) -> dict[str, Any] | None:
    """The last status of a site, None before its first."""
    path = folder / STATUS
    return read_json(path, "remove it: the site writes it again") if path.exists() else None


def site_name(folder: Path) -> str:
    """The site's name in its settings, which are not checked."""
    return str(read_config(folder / CONFIG).get("name", folder.name))
