"""The audit log: which decision was made when, for whom and how fast. It never holds a payload.

A thread writes it, so a slow or full disk does not delay answers. Records that cannot be written are dropped and
counted, and writing goes on as soon as it works again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from feddrm.errors import FeddrmError, SettingError
from feddrm.serve.telemetry.background_writer import BackgroundWriter

log = logging.getLogger("feddrm.serve")
CAPACITY = 20_000  # records that may wait to be written
FLUSH_SECONDS = 0.25
PRUNE_SECONDS = 3600.0
INSERT_ROWS = 500  # rows of one statement; SQLite takes 32,766 values
UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")  # of a text
SLOW_SECONDS = 10.0  # a write that takes longer counts as trouble
# libpq's options, unless the URL has others: a server that has vanished is noticed after 15 s, not after hours.
LOST_SERVER = {"connect_timeout": 5, "tcp_user_timeout": 15_000, "keepalives_idle": 5, "keepalives_interval": 5}


class AuditRecord(NamedTuple):
    """One decision, or all decisions of a request that are equal: same client, answers and reason to abstain.

    ``samples`` is their number and ``places`` their positions in the request, from 0. ``probability`` and ``margin``
    are the smallest among them.
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
    trace_id: str = ""

    def storable(self) -> AuditRecord:
        """The record as every database takes it: one text with a NUL or half of a surrogate pair fails a whole batch.

        Only what others wrote can have one, such as the name of a key. Nearly all are printable, as is fast to tell.
        """
        if f"{self.request_id}{self.caller}{self.artifact}{self.client}{self.answered}{self.failed}".isprintable():
            return self
        return AuditRecord._make(UNSTORABLE.sub("\ufffd", value) if isinstance(value, str) else value for value in self)


TYPES = {"time": "DOUBLE PRECISION", "probability": "DOUBLE PRECISION", "margin": "DOUBLE PRECISION",
         "abstain": "INTEGER", "samples": "INTEGER", "milliseconds": "DOUBLE PRECISION"}  # fmt: skip
FIELDS = ", ".join(AuditRecord._fields)
LATER = AuditRecord._fields[-1]  # added to the logs of older versions
OLD_FIELDS = ", ".join(AuditRecord._fields[:-1])
COLUMNS = ", ".join(f"{name} {TYPES.get(name, 'TEXT')}" for name in AuditRecord._fields)


class DatabaseConnection(Protocol):
    """What SQLite's and PostgreSQL's connections have in common."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class AuditLog:
    """``add`` never blocks. ``written`` and ``dropped`` count records."""

    def __init__(self, place: str, retention_days: float, on_count: Callable[[str, int], None] | None = None) -> None:
        self.place, self.retention = place, retention_days * 86400
        self.written = self.dropped = 0
        self._error: str | None = None
        self._writing_since: float | None = None
        self._count = on_count or (lambda *_: None)
        self._lock = threading.Lock()
        self._last_pruned = float("-inf")
        self._database: SqliteDatabase | PostgresDatabase = (
            PostgresDatabase(place) if "://" in place else SqliteDatabase(place)
        )
        # Opened now, so that a place that cannot work is an error at start.
        self._connection: DatabaseConnection | None = self._open()
        self._writer: BackgroundWriter[AuditRecord] = BackgroundWriter(
            "audit", self._write, capacity=CAPACITY, flush_seconds=FLUSH_SECONDS, idle_seconds=PRUNE_SECONDS
        )

    @property
    def trouble(self) -> str | None:
        """The current error, if any: a write that failed, or one that does not end."""
        since = self._writing_since  # read once, because the writer's thread changes it
        if since is not None and time.monotonic() - since > SLOW_SECONDS:
            return f"a write takes longer than {SLOW_SECONDS:g} s"
        return self._error

    def add(self, record: AuditRecord) -> None:
        if not self._writer.put(record.storable()):
            self._drop(1)

    def close(self) -> None:
        """Write the waiting records, then stop."""
        self._writer.close()
        if self._connection is not None:
            self._database.close(self._connection)

    def _write(self, records: Sequence[AuditRecord]) -> None:
        if records:
            if self._execute(lambda cursor: self._database.insert(cursor, records)):
                self.written += len(records)
                self._count("written", len(records))
            else:
                self._drop(len(records))
        if time.monotonic() - self._last_pruned > PRUNE_SECONDS:
            self._last_pruned = time.monotonic()
            self._execute(lambda cursor: self._database.delete_before(cursor, time.time() - self.retention))

    def _execute(self, statements: Callable[[Any], None]) -> bool:
        """Whether the statements were executed; if not, ``trouble`` says why."""
        self._writing_since = time.monotonic()
        try:
            if self._connection is not None and self._database.was_moved():
                log.warning("the audit log's file was moved or removed: a new one is started")
                self._database.close(self._connection)
                self._connection = None
            connection = self._connection = self._connection or self._open()
            statements(connection.cursor())
            connection.commit()
        except Exception as error:  # full disk, broken file, lost server: the gateway must go on in any case
            if self._error is None:
                log.error("the audit log cannot be written", extra={"fields": {"reason": _first_line(error)}})
            self._error = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                if self._connection is not None:
                    self._connection.rollback()
                    self._connection.close()
            self._connection = None
            return False
        finally:
            self._writing_since = None
        if self._error is not None:
            log.info("the audit log is written again", extra={"fields": {"dropped": self.dropped}})
        self._error = None
        return True

    def _drop(self, number: int) -> None:
        with self._lock:  # called by those who add and by the writer's thread
            self.dropped += number
        self._count("dropped", number)

    def _open(self) -> DatabaseConnection:
        # A URL may hold a password, so it is not shown.
        where = "the audit log's database" if "://" in self.place else f"the audit log {self.place}"
        connection: DatabaseConnection | None = None
        try:
            connection = self._database.connect()
            if not _has_fields(connection, OLD_FIELDS):  # creating needs more rights than writing to what is there
                _create(connection)
        except Exception as error:
            if connection is not None:
                connection.close()
            raise FeddrmError(f"cannot open {where} ({_first_line(error)}): choose another --audit") from error
        if not _has_fields(connection, FIELDS) and _has_fields(connection, OLD_FIELDS):
            with contextlib.suppress(Exception):  # another gateway may have been faster
                connection.cursor().execute(f"ALTER TABLE decisions ADD COLUMN {LATER} TEXT")
                connection.commit()
        if not _has_fields(connection, FIELDS):
            connection.close()
            raise FeddrmError(f"{where} was made by another version: move it away, or choose another --audit")
        return connection


class SqliteDatabase:
    """A SQLite file. One statement inserts many rows, because the interpreter may switch threads between statements."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._opened_file: tuple[int, int] | None = None

    def connect(self) -> DatabaseConnection:
        with contextlib.suppress(FileExistsError):  # the log names callers, so only its owner may read a new file
            os.close(os.open(self.place, os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(self.place, timeout=5, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error:  # not a database, for example
            connection.close()
            raise
        self._opened_file = self._current_file()
        return connection

    def was_moved(self) -> bool:
        """Whether the opened file is no longer at its place: SQLite would go on writing to a file nobody can find."""
        return self._current_file() != self._opened_file

    def close(self, connection: DatabaseConnection) -> None:
        """Close the file with all its records: of a moved file SQLite would leave the latest ones at the old place."""
        with contextlib.suppress(Exception):
            connection.cursor().execute("PRAGMA wal_checkpoint")  # it waits for nobody who reads
        connection.close()

    def insert(self, cursor: Any, records: Sequence[AuditRecord]) -> None:
        row = f"({', '.join('?' * len(AuditRecord._fields))})"
        for start in range(0, len(records), INSERT_ROWS):
            part = records[start : start + INSERT_ROWS]
            values = [value for record in part for value in record]
            cursor.execute(f"INSERT INTO decisions ({FIELDS}) VALUES {', '.join([row] * len(part))}", values)

    def delete_before(self, cursor: Any, when: float) -> None:
        cursor.execute("DELETE FROM decisions WHERE time < ?", (when,))

    def _current_file(self) -> tuple[int, int] | None:
        try:
            status = Path(self.place).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


class PostgresDatabase:
    """A PostgreSQL server. One statement inserts many rows, sent as a JSON array."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise SettingError("the audit log goes to a SQLite file or a postgresql:// URL: give one of them")
        try:
            import psycopg
        except ImportError as error:
            raise FeddrmError(
                "an audit log in PostgreSQL needs one more package: pip install 'feddrm[postgres]'"
            ) from error
        options = LOST_SERVER | _read_url(psycopg.conninfo.conninfo_to_dict, url)
        self._connect: Callable[[], DatabaseConnection] = lambda: psycopg.connect(**options)

    def connect(self) -> DatabaseConnection:
        return self._connect()

    def was_moved(self) -> bool:
        """Never: a lost server raises an error."""
        return False

    def close(self, connection: DatabaseConnection) -> None:
        connection.close()

    def insert(self, cursor: Any, records: Sequence[AuditRecord]) -> None:
        fields = ", ".join(f"(value->>{i})::{TYPES.get(name, 'TEXT')}" for i, name in enumerate(AuditRecord._fields))
        text = orjson.dumps(records, default=tuple).decode()
        cursor.execute(f"INSERT INTO decisions ({FIELDS}) SELECT {fields} FROM json_array_elements(%s::json)", (text,))

    def delete_before(self, cursor: Any, when: float) -> None:
        cursor.execute("DELETE FROM decisions WHERE time < %s", (when,))


def _read_url(parse: Callable[[str], dict[str, Any]], url: str) -> dict[str, Any]:
    """The options in a URL. One that cannot be read as it was meant is refused: libpq would quote the password."""
    problem = "the audit log's postgresql:// URL cannot be read: check it; write special signs of its password as %XX"
    try:
        parts = parse(url)
    except Exception:
        raise SettingError(problem) from None
    host, port = str(parts.get("host", "")), str(parts.get("port", ""))
    if ("@" in host and host[0] not in "/@") or not all(one.isdigit() for one in port.split(",") if one):
        raise SettingError(problem)
    return parts


def _create(connection: DatabaseConnection) -> None:
    try:
        connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS decisions ({COLUMNS})")
        connection.cursor().execute("CREATE INDEX IF NOT EXISTS decisions_time ON decisions (time)")
        connection.commit()
    except Exception:
        connection.rollback()
        if not _has_fields(connection, FIELDS):  # PostgreSQL refuses the slower one of two that create it at once
            raise


def _has_fields(connection: DatabaseConnection, fields: str) -> bool:
    try:
        connection.cursor().execute(f"SELECT {fields} FROM decisions LIMIT 0")
    except Exception:  # each database has its own error for an unknown column
        return False
    finally:
        connection.rollback()
    return True


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
