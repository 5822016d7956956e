"""The log: JSON lines on standard error, written by a thread, so that a slow reader holds up no answer."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from feddrm.serve.telemetry.background_writer import Drain

log = logging.getLogger("feddrm.serve")
ROOM = 10_000  # lines that wait for whoever reads them
FLUSH_SECONDS = 0.1


class Lines(logging.Handler):
    """One JSON object per line. What finds no room is dropped, and a later line says how many."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream, self.dropped = stream, 0
        self._drain: Drain[bytes] = Drain("log", self._write, room=ROOM, seconds=FLUSH_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["trace"] = logging.Formatter().formatException(record.exc_info)
        self.put(record.created, record.levelname.lower(), record.getMessage(), fields)

    def put(self, when: float, level: str, message: str, fields: Mapping[str, Any]) -> None:
        if not self._drain.put(_line(when, level, message, fields)):
            self.dropped += 1

    def close(self) -> None:
        """Write what is waiting, then stop."""
        self._drain.close()
        super().close()

    def _write(self, lines: list[bytes]) -> None:
        number, self.dropped = self.dropped, 0
        if number:
            lines.append(_line(time.time(), "warning", "log lines dropped", {"number": number}))
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            self.stream.write(b"".join(lines))
            self.stream.flush()


def _line(when: float, level: str, message: str, fields: Mapping[str, Any]) -> bytes:
    line = {"time": round(when, 3), "level": level, "message": message, **fields}
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a character in somebody's text
        return json.dumps(line, default=str).encode() + b"\n"


def note_request(seconds: float, fields: dict[str, Any]) -> None:
    """A request's line. Straight to the thread where it can: the logging module takes longer than a decision."""
    if not log.isEnabledFor(logging.INFO):
        return
    fields["ms"] = round(1e3 * seconds, 2)
    for handler in log.handlers:
        if isinstance(handler, Lines):
            handler.put(time.time(), "info", "request", fields)
            return
    log.info("request", extra={"fields": fields})


@contextlib.contextmanager
def logging_json(level: str) -> Iterator[None]:
    """While an application runs."""
    handler = Lines(sys.stderr.buffer)
    for name, least in (("feddrm.serve", level.upper()), ("uvicorn.error", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
    try:
        yield
    finally:
        handler.close()
