"""Logs of a server or a site: lines with the time in UTC, without colour codes, in files of limited size."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from feddrm.errors import FeddrmError

LOG = "feddrm.log"
MOST_BYTES, KEPT = 5 * 2**20, 3  # of one file; how many older files are kept
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")  # Flower's HTTP server writes the time itself
LOGGERS = {"feddrm.deploy": logging.INFO, "feddrm.tls": logging.INFO, "flwr": logging.ERROR}

log = logging.getLogger("feddrm.deploy")


def utc(seconds: float) -> str:
    """A time as logs and ``feddrm deploy status`` show it, such as 2026-11-16T08:15:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def last_line(path: Path, since: float) -> str | None:
    """The last line of a log that was written at or after a time; None without one."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    first = next((i for i, line in enumerate(lines) if DATED.match(line) and line >= utc(since)), len(lines))
    return next((line for line in reversed(lines[first:]) if line.strip()), None)


class LineFormatter(logging.Formatter):
    """The time, then the message and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        text = COLOUR.sub("", super().format(record)).rstrip()
        return text if DATED.match(text) else f"{utc(record.created)} {text}"


class RotatingLog(RotatingFileHandler):
    """A log file that begins anew at ``MOST_BYTES``; ``KEPT`` older ones stay, as ``.1``, ``.2`` and so on.

    Only its owner can read it: a site's log has the numbers and cells that stay out of its replies. On a full or
    read-only disk lines are lost. Whoever logs goes on.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8", delay=True)
        self.setFormatter(LineFormatter())

    def _open(self) -> TextIOWrapper:
        file = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(file, "a", encoding="utf-8")

    def line(self, text: str) -> None:
        self.handle(logging.makeLogRecord({"msg": text}))

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: logging would print a stack trace for every line."""

    def close(self) -> None:
        with suppress(OSError):  # what waits to be written finds no room
            super().close()


@contextmanager
def logging_to(folder: Path) -> Iterator[None]:
    """Log to ``feddrm.log`` and to standard error within the block. An error that ends the block is logged, too."""
    file, stream = RotatingLog(folder / LOG), logging.StreamHandler(sys.stderr)
    stream.setFormatter(LineFormatter())
    for name, level in LOGGERS.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [file, stream], False  # instead of Flower's own, which colours its lines
        logger.setLevel(level)
    try:
        yield
    except FeddrmError as error:  # the command line prints it
        file.line(f"error: {error}")
        raise
    except Exception:
        log.exception("this process ends by a fault")
        raise
    finally:
        for name in LOGGERS:
            logging.getLogger(name).handlers, logging.getLogger(name).propagate = [], True
        file.close()
