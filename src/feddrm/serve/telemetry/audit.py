"""The audit log: which decision was made when, for whom and how fast. Never a payload.

A thread writes, so a slow or full disk never holds up an answer: what cannot be written is dropped and
counted, and the log goes on as soon as there is room again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from feddrm.errors import FeddrmError, SettingError
from feddrm.serve.telemetry.background_writer import Drain

log = logging.getLogger("feddrm.serve")
ROOM = 20_000  # records waiting for the disk
FLUSH_SECONDS = 0.25
PRUNE_SECONDS = 3600.0
TOGETHER = 500  # rows of one statement; SQLite takes 32,766 values


class Record(NamedTuple):
    """One decision, or those of a request that are alike: the same client, the same answers, the same doubts.

    ``samples`` says how many they are and ``places`` which of the request, from 0; probability and
    margin are the least among them.
    """

    time: float
    request_id: str
    caller: str
    action: str
    artifact: str
    samples: int
    places: str
    client: str | None
    probability: float
    margin: float
    abstain: int
    reason: str
    answered: str
    failed: str
    milliseconds: float


TYPES = {"time": "DOUBLE PRECISION", "probability": "DOUBLE PRECISION", "margin": "DOUBLE PRECISION",
         "abstain": "INTEGER", "samples": "INTEGER", "milliseconds": "DOUBLE PRECISION"}  # fmt: skip
FIELDS = ", ".join(Record._fields)
COLUMNS = ", ".join(f"{name} {TYPES.get(name, 'TEXT')}" for name in Record._fields)


class Connection(Protocol):
    """What SQLite's and PostgreSQL's connections have in common."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class AuditLog:
    """``add`` never waits. ``written`` and ``dropped`` count; ``trouble`` says why, while there is any."""

    def __init__(self, place: str, retention_days: float, on_count: Callable[[str, int], None] | None = None) -> None:
        self.place, self.retention = place, retention_days * 86400
        self.written = self.dropped = 0
        self.trouble: str | None = None
        self._count = on_count or (lambda *_: None)
        self._lock = threading.Lock()
        self._pruned = float("-inf")
        self._base: Sqlite | Postgres = Postgres(place) if "://" in place else Sqlite(place)
        self._connection: Connection | None = self._open()  # what cannot work is refused before anything is served
        self._drain: Drain[Record] = Drain("audit", self._write, room=ROOM, seconds=FLUSH_SECONDS, idle=PRUNE_SECONDS)

    def add(self, record: Record) -> None:
        if not self._drain.put(record):
            self._drop(1)

    def close(self) -> None:
        """Write what is waiting, then stop."""
        self._drain.close()
        if self._connection is not None:
            self._connection.close()

    def _write(self, records: Sequence[Record]) -> None:
        if records:
            if self._run(lambda cursor: self._base.insert(cursor, records)):
                self.written += len(records)
                self._count("written", len(records))
            else:
                self._drop(len(records))
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._pruned = time.monotonic()
            self._run(lambda cursor: self._base.forget(cursor, time.time() - self.retention))

    def _run(self, work: Callable[[Any], None]) -> bool:
        try:
            if self._connection is not None and self._base.lost():
                log.warning("the audit log's file was taken away: it is begun anew")
                self._base.leave(self._connection)
                self._connection = None
            connection = self._connection = self._connection or self._open()
            work(connection.cursor())
            connection.commit()
        except Exception as error:  # full disk, broken file, lost server: serving goes on whatever it is
            if self.trouble is None:
                log.error("the audit log cannot be written", extra={"fields": {"reason": _first_line(error)}})
            self.trouble = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                if self._connection is not None:
                    self._connection.rollback()
                    self._connection.close()
            self._connection = None
            return False
        if self.trouble is not None:
            log.info("the audit log is written again", extra={"fields": {"dropped": self.dropped}})
        self.trouble = None
        return True

    def _drop(self, number: int) -> None:
        with self._lock:  # by those who add and by the thread that writes
            self.dropped += number
        self._count("dropped", number)

    def _open(self) -> Connection:
        where = "the audit log's database" if "://" in self.place else f"the audit log {self.place}"  # no passwords
        try:
            found = self._base.connect()
            found.cursor().execute(f"CREATE TABLE IF NOT EXISTS decisions ({COLUMNS})")
            found.cursor().execute("CREATE INDEX IF NOT EXISTS decisions_time ON decisions (time)")
            found.commit()
        except Exception as error:
            raise FeddrmError(f"cannot open {where} ({_first_line(error)}): choose another --audit") from error
        try:
            found.cursor().execute(f"SELECT {FIELDS} FROM decisions LIMIT 0")
            found.rollback()
        except Exception as error:
            found.close()
            raise FeddrmError(
                f"{where} was made by another version: move it away, or choose another --audit"
            ) from error
        return found


class Sqlite:
    """A file. Many rows go in by one statement, for between statements the interpreter is taken from the others."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._file: tuple[int, int] | None = None

    def connect(self) -> Connection:
        with contextlib.suppress(FileExistsError):  # it names callers: what is made here is its owner's alone
            os.close(os.open(self.place, os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(self.place, timeout=5, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        self._file = self._found()
        return connection

    def lost(self) -> bool:
        """Whether another file, or none, is where it was opened: SQLite would write on into what nobody can read."""
        return self._found() != self._file

    def leave(self, connection: Connection) -> None:
        """Close a file that was moved, with all its records in it: SQLite would leave the latest at its old place."""
        with contextlib.suppress(Exception):
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def _found(self) -> tuple[int, int] | None:
        try:
            found = Path(self.place).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def insert(self, cursor: Any, records: Sequence[Record]) -> None:
        row = f"({', '.join('?' * len(Record._fields))})"
        for start in range(0, len(records), TOGETHER):
            part = records[start : start + TOGETHER]
            values = [value for record in part for value in record]
            cursor.execute(f"INSERT INTO decisions ({FIELDS}) VALUES {', '.join([row] * len(part))}", values)

    def forget(self, cursor: Any, before: float) -> None:
        cursor.execute("DELETE FROM decisions WHERE time < ?", (before,))


class Postgres:
    """A server. Many rows go in as one JSON array, which it takes apart itself."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise SettingError("the audit log goes to a SQLite file or a postgresql:// URL: give one of them")
        try:
            import psycopg
        except ImportError as error:
            raise FeddrmError(
                "an audit log in PostgreSQL needs one more package: pip install 'feddrm[postgres]'"
            ) from error
        self._connect: Callable[[], Connection] = lambda: psycopg.connect(url, connect_timeout=5)

    def connect(self) -> Connection:
        return self._connect()

    def lost(self) -> bool:
        """It says so itself."""
        return False

    def leave(self, connection: Connection) -> None:
        connection.close()

    def insert(self, cursor: Any, records: Sequence[Record]) -> None:
        fields = ", ".join(f"(value->>{i})::{TYPES.get(name, 'TEXT')}" for i, name in enumerate(Record._fields))
        text = orjson.dumps(records, default=tuple).decode()
        cursor.execute(f"INSERT INTO decisions ({FIELDS}) SELECT {fields} FROM json_array_elements(%s::json)", (text,))

    def forget(self, cursor: Any, before: float) -> None:
        cursor.execute("DELETE FROM decisions WHERE time < %s", (before,))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
