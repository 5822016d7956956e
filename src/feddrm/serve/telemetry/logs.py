"""The log: JSON lines on standard error, written by a thread so that a slow reader does not delay answers."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from feddrm.serve.telemetry.background_writer import BackgroundWriter

log = logging.getLogger("feddrm.serve")
CAPACITY = 10_000  # lines that may wait to be written
FLUSH_SECONDS = 0.1


class JsonLogHandler(logging.Handler):
    """Writes one JSON object per line. Lines that find no room are dropped; a later line says how many."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream, self.dropped = stream, 0
        self._writer: BackgroundWriter[bytes] = BackgroundWriter(
            "log", self._write, capacity=CAPACITY, flush_seconds=FLUSH_SECONDS
        )

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["trace"] = logging.Formatter().formatException(record.exc_info)
        self.put(record.created, record.levelname.lower(), record.getMessage(), fields)

    def put(self, when: float, level: str, message: str, fields: Mapping[str, Any]) -> None:
        if not self._writer.put(_json_line(when, level, message, fields)):
            self.dropped += 1

    def close(self) -> None:
        """Write the waiting lines, then stop."""
        self._writer.close()
        super().close()

    def _write(self, lines: list[bytes]) -> None:
        number, self.dropped = self.dropped, 0
        if number:
            lines.append(_json_line(time.time(), "warning", "log lines dropped", {"number": number}))
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            self.stream.write(b"".join(lines))
            self.stream.flush()


def _json_line(when: float, level: str, message: str, fields: Mapping[str, Any]) -> bytes:
    line = {"time": round(when, 3), "level": level, "message": message, **fields}
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half of a surrogate pair in a caller's text
        return json.dumps(line, default=str).encode() + b"\n"


def log_request(seconds: float, fields: dict[str, Any]) -> None:
    """The log line of a request. It bypasses the logging module where it can, which takes longer than a decision."""
    if not log.isEnabledFor(logging.INFO):
        return
    fields["ms"] = round(1e3 * seconds, 2)
    for handler in log.handlers:
        if isinstance(handler, JsonLogHandler):
            handler.put(time.time(), "info", "request", fields)
            return
    log.info("request", extra={"fields": fields})


@contextlib.contextmanager
def json_logging(level: str) -> Iterator[None]:
    """Log as JSON lines within the block."""
    handler = JsonLogHandler(sys.stderr.buffer)
    others = dict.fromkeys(("uvicorn.error", "feddrm.tls", "grpc", "opentelemetry"), "WARNING")
    before = []
    for name, lowest in {"feddrm.serve": level.upper(), **others}.items():
        logger = logging.getLogger(name)
        before.append((logger, logger.handlers, logger.propagate, logger.level))
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(lowest)
    try:
        yield
    finally:
        handler.close()
        for logger, handlers, propagate, number in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(number)
