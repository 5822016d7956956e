"""A site's status file, for ``feddrm deploy status`` at the site: its connection, and the server's last message."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddrm.deploy.rotating_log import log
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, read_json

STATUS = "status.json"
CONNECTED = "connected"


class SiteStatus:
    """What a site knows of its federation. It is written by two threads: connection and messages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.values: dict[str, Any] = read_site_status(folder) or {}

    def connection(self, text: str) -> None:
        """How the connection is: ``connected``, or why it is not."""
        now = {"connected": text == CONNECTED, "reason": "" if text == CONNECTED else text}
        if now.items() <= self.values.items():
            return  # a SuperNode that starts again says it again
        log.info("connected to the server" if text == CONNECTED else f"not connected: {text}")
        self._write(**now, since=time.time())

    def message(self, header: Mapping[str, Any], error: str = "") -> None:
        """A message of the server has come; ``error`` is why it was refused."""
        if header.get("kind") == "waiting":  # the server tells whom it waits for, and since when
            self._write(waiting=header["for"])
            return
        spec = header.get("brief")
        run = spec.get("run") if isinstance(spec, dict) else None
        message = {"kind": header.get("kind"), "run": run, "round": header.get("round"), "time": time.time()}
        self._write(message={**message, "error": error.encode(errors="backslashreplace").decode()}, waiting={})

    def _write(self, **changes: Any) -> None:
        with self.lock:
            self.values |= changes
            write_atomically(self.folder / STATUS, json_line(self.values), private=True)


def read_site_status(folder: Path) -> dict[str, Any] | None:
    """The last status of a site, None before its first."""
    path = folder / STATUS
    return read_json(path, "remove it: the site writes it again") if path.exists() else None
