"""The audit log: which decision was made when, for whom and how fast. Never a payload.

A thread writes, so a slow or full disk never holds up an answer: what cannot be written is dropped and
counted, and the log goes on as soon as there is room again.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from feddrm.errors import FeddrmError, SettingError

ROOM = 20_000  # records waiting for the disk
FLUSH_SECONDS = 0.25
PRUNE_SECONDS = 3600.0


class Record(NamedTuple):
    """One decision."""

    time: float
    request_id: str
    caller: str
    action: str
    artifact: str
    client: str | None
    probability: float
    margin: float
    abstain: int
    reason: str
    answered: str
    failed: str
    milliseconds: float


TYPES = {"time": "DOUBLE PRECISION", "probability": "DOUBLE PRECISION", "margin": "DOUBLE PRECISION",
         "abstain": "INTEGER", "milliseconds": "DOUBLE PRECISION"}  # fmt: skip
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
        self._mark = "?"
        self._connect: Callable[[], Connection] = self._sqlite
        if "://" in place:
            self._connect, self._mark = self._postgres(place), "%s"
        self._queue: queue.Queue[Record | None] = queue.Queue(ROOM)
        self._connection: Connection | None = None
        self._open()  # what cannot work at all is refused before anything is served
        self._thread = threading.Thread(target=self._write, name="audit", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._drop(1)

    def close(self) -> None:
        """Write what is waiting, then stop."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=5)
        self._thread.join(timeout=5)

    def _write(self) -> None:
        pruned, last = float("-inf"), False
        while not last:
            batch = list(self._waiting())
            last = None in batch
            self._store([record for record in batch if record is not None])
            if time.monotonic() - pruned > PRUNE_SECONDS:
                pruned = time.monotonic()
                self._run("DELETE FROM decisions WHERE time < " + self._mark, [(time.time() - self.retention,)])
        if self._connection is not None:
            self._connection.close()

    def _waiting(self) -> Iterator[Record | None]:
        yield self._queue.get()
        time.sleep(FLUSH_SECONDS)  # one transaction for many decisions
        for _ in range(ROOM):
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def _store(self, records: Sequence[Record]) -> None:
        if not records:
            return
        marks = ", ".join([self._mark] * len(Record._fields))
        if self._run(f"INSERT INTO decisions ({', '.join(Record._fields)}) VALUES ({marks})", records):
            self.written += len(records)
            self._count("written", len(records))
        else:
            self._drop(len(records))

    def _run(self, statement: str, values: Sequence[Sequence[Any]]) -> bool:
        try:
            connection = self._connection or self._open()
            connection.cursor().executemany(statement, values)
            connection.commit()
        except Exception as error:  # full disk, broken file, lost server: serving goes on whatever it is
            self.trouble = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):
                if self._connection is not None:
                    self._connection.rollback()
                    self._connection.close()
            self._connection = None
            return False
        self.trouble = None
        return True

    def _drop(self, number: int) -> None:
        self.dropped += number
        self._count("dropped", number)

    def _open(self) -> Connection:
        self._connection = self._connect()
        self._connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS decisions ({COLUMNS})")
        self._connection.cursor().execute("CREATE INDEX IF NOT EXISTS decisions_time ON decisions (time)")
        self._connection.commit()
        return self._connection

    def _sqlite(self) -> Connection:
        try:
            connection = sqlite3.connect(self.place, timeout=5, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error as error:
            raise FeddrmError(f"cannot open the audit log {self.place} ({error}): choose another --audit") from error
        return connection

    def _postgres(self, url: str) -> Callable[[], Connection]:
        if not url.startswith(("postgresql://", "postgres://")):
            raise SettingError("the audit log goes to a SQLite file or a postgresql:// URL: give one of them")
        try:
            import psycopg
        except ImportError as error:
            raise FeddrmError(
                "an audit log in PostgreSQL needs one more package: pip install 'psycopg[binary]'"
            ) from error

        def connect() -> Connection:
            try:
                found: Connection = psycopg.connect(url, connect_timeout=5)
            except psycopg.Error as error:
                raise FeddrmError(
                    f"cannot reach the audit log's database ({type(error).__name__}): check its URL"
                ) from error
            return found

        return connect
