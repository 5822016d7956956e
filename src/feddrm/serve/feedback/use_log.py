"""The use log: what the gateway answered, and the outcomes that callers report later.

A SQLite file, opt-in. Unlike the audit log it holds labels and, where that is asked for, features. A thread writes
the answers. Outcomes are on the disk before their request is answered, all of a request or none.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feddrm.errors import FeddrmError
from feddrm.serve.loaded_router import Decisions, RequestContext
from feddrm.serve.telemetry.audit import INSERT_ROWS, SqliteDatabase
from feddrm.serve.telemetry.background_writer import BackgroundWriter

log = logging.getLogger("feddrm.serve")
CAPACITY = 20_000  # answers that may wait to be written
FLUSH_SECONDS = 0.25
PRUNE_SECONDS = 3600.0
DAY = 86400.0


class Use(NamedTuple):
    """One query that was answered. ``features`` are float32 bytes, if they are recorded.

    ``caller`` is empty where the gateway asks for no keys, and where an older version wrote the answer.
    """

    time: float
    request_id: str
    place: int  # among the samples of its request, from 0
    action: str  # route or predict; empty once its retention is over
    artifact: str
    client: str | None
    label: str | None
    label_probability: float | None
    reason: str  # to abstain
    features: bytes | None = None
    caller: str = ""


class Outcome(NamedTuple):
    """The true label of a predicted query. ``place`` may be left out if its request had one sample."""

    request_id: str
    label: str
    place: int | None = None


class OutcomeProblem(FeddrmError):
    """An outcome that cannot be stored: ``kind`` is unknown, late, ambiguous, routed, label or conflict."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class StoredOutcome(NamedTuple):
    """A stored outcome: the artifact that answered, and ``right``, ``wrong`` or ``abstained``."""

    artifact: str
    result: str


FIELDS = ", ".join(Use._fields)
OLDER_FIELDS = ", ".join(Use._fields[:-1])  # of the logs of older versions
SCHEMA = """CREATE TABLE IF NOT EXISTS uses (
    number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, request_id TEXT, place INTEGER, action TEXT, artifact TEXT,
    client TEXT, label TEXT, label_probability REAL, reason TEXT, features BLOB,
    caller TEXT NOT NULL, outcome TEXT, outcome_time REAL, outcome_caller TEXT, UNIQUE (request_id, place, caller))"""
# A caller may send its own request id twice: the latest answer counts, until it has an outcome.
UPDATE = (
    "ON CONFLICT (request_id, place, caller) DO UPDATE "
    f"SET {', '.join(f'{name} = excluded.{name}' for name in Use._fields)} WHERE outcome IS NULL"
)
SCRUB = ", ".join(f"{name} = NULL" for name in ("client", "label", "label_probability", "features", "outcome"))


class UseLog:
    """``add`` never blocks; what cannot be written is dropped and counted.

    Answers lose their content after the retention and are deleted after twice that time, so that a late outcome can be
    told from an unknown one. The latest ``max_rows`` answers are kept at most, and features of the latest
    ``feature_rows``.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention_days: float,
        max_rows: int,
        feature_rows: int = 0,
        on_count: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self.path, self.retention, self.max_rows, self.feature_rows = path, retention_days * DAY, max_rows, feature_rows
        self.dropped = 0
        self.trouble: str | None = None
        self._count = on_count
        self._added = self._handled = 0
        self._unpruned, self._last_pruned = 0, float("-inf")
        _open(path).close()  # a place that cannot work is an error at start
        self._writer: BackgroundWriter[Use] = BackgroundWriter(
            "use log", self._write, capacity=CAPACITY, flush_seconds=FLUSH_SECONDS, idle_seconds=PRUNE_SECONDS
        )

    def add(self, use: Use) -> None:
        if self._writer.put(use):
            self._added += 1
        else:
            self._drop(1)

    def record(
        self, context: RequestContext, decisions: Decisions, answers: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Add the predictions of a request or, without ``answers``, its decisions, if features are recorded."""
        if answers is None and not self.feature_rows:
            return
        now, names = time.time(), context.router.names
        for place, (number, reason) in enumerate(zip(decisions.client.tolist(), decisions.reason, strict=True)):
            features = None
            if self.feature_rows and decisions.features is not None:
                features = decisions.features[place].astype("<f4", copy=False).tobytes()
            client, label, sure = names[number] if number >= 0 else None, None, None
            if answers is not None:
                answer = answers[place]
                client, label, sure = answer["client"] or client, answer["label"], answer["label_probability"]
            ids = context.request_id, place, context.action, context.router.version
            self.add(Use(now, *ids, client, label, sure, reason, features, context.caller))

    def close(self) -> None:
        """Write the waiting answers, then stop."""
        self._writer.close()

    def add_outcomes(
        self, outcomes: Sequence[Outcome], caller: str = "", reporter: str | None = None
    ) -> list[StoredOutcome | None]:
        """Store the true labels of answers, all or none; None for an outcome that was known already.

        They are of answers to this caller, or to nobody in particular. ``reporter`` is who reports, if not the caller.
        """
        for last in (False, True):
            try:
                with _transaction(self.path) as database:
                    return [self._add_outcome(database, outcome, caller, reporter) for outcome in outcomes]
            except OutcomeProblem as problem:
                if last or problem.kind != "unknown":
                    raise
                self._flush()  # its answer may still wait to be written
        raise AssertionError

    def _add_outcome(
        self, database: sqlite3.Connection, outcome: Outcome, caller: str, reporter: str | None
    ) -> StoredOutcome | None:
        number, when, action, artifact, label, known = self._find(database, outcome, caller)
        name = f"request '{outcome.request_id[:64]}'"
        if when < time.time() - self.retention or not action:
            days = f"{self.retention / DAY:g} days"
            raise OutcomeProblem("late", f"{name} was answered more than {days} ago: report outcomes earlier")
        if action != "predict":
            raise OutcomeProblem("routed", f"{name} was routed only: outcomes are of answers by /v1/predict")
        if known is not None and known != outcome.label:
            raise OutcomeProblem("conflict", f"{name} has the outcome '{known}' already, not '{outcome.label[:64]}'")
        if known is not None:
            return None
        database.execute(
            "UPDATE uses SET outcome = ?, outcome_time = ?, outcome_caller = ? WHERE number = ?",
            (outcome.label, time.time(), caller if reporter is None else reporter, number),
        )
        return StoredOutcome(artifact, "abstained" if label is None else "right" if label == outcome.label else "wrong")

    def _find(self, database: sqlite3.Connection, outcome: Outcome, caller: str) -> tuple[Any, ...]:
        query = (
            "SELECT number, time, action, artifact, label, outcome, place FROM uses WHERE request_id = ? AND caller = ?"
        )
        rows = database.execute(query, (outcome.request_id, caller)).fetchall()
        rows = rows or database.execute(query, (outcome.request_id, "")).fetchall()
        name = f"request '{outcome.request_id[:64]}'"
        if not rows:
            to = f" to '{caller[:64]}'" if caller else ""
            kept = f"the latest {self.max_rows:,} answers of {2 * self.retention / DAY:g} days are known"
            raise OutcomeProblem("unknown", f"{name} is unknown: {kept}; send the request_id of an answer{to}")
        if outcome.place is None and len(rows) > 1:
            raise OutcomeProblem("ambiguous", f"{name} had {len(rows)} samples: say which by 'place', from 0")
        for row in rows:
            if outcome.place in (None, row[-1]):
                return tuple(row[:-1])
        raise OutcomeProblem(
            "ambiguous", f"{name} had {len(rows)} samples, counted from 0: none has place {outcome.place}"
        )

    def _flush(self) -> None:
        """Wait until all answers that were added so far are written."""
        added, until = self._added, time.monotonic() + 8 * FLUSH_SECONDS
        while self._handled < added and time.monotonic() < until:
            time.sleep(FLUSH_SECONDS / 10)

    def _write(self, uses: Sequence[Use]) -> None:
        try:
            with _transaction(self.path) as database:
                for start in range(0, len(uses), INSERT_ROWS):
                    _insert(database, uses[start : start + INSERT_ROWS])
                self._unpruned += len(uses)
                if self._unpruned > self.max_rows // 10 or time.monotonic() - self._last_pruned > PRUNE_SECONDS:
                    self._prune(database)
        except Exception as error:  # full disk, broken file: the gateway must go on in any case
            if self.trouble is None:
                log.error("the use log cannot be written", extra={"fields": {"reason": str(error)}})
            self.trouble = str(error)
            self._drop(len(uses))
        else:
            if self.trouble is not None:
                log.info("the use log is written again", extra={"fields": {"dropped": self.dropped}})
            self.trouble = None
            self._count("written", len(uses))
        self._handled += len(uses)

    def _prune(self, database: sqlite3.Connection) -> None:
        self._unpruned, self._last_pruned = 0, time.monotonic()
        now = time.time()
        database.execute(
            f"UPDATE uses SET action = '', {SCRUB} WHERE action != '' AND time < ?", (now - self.retention,)
        )
        database.execute("DELETE FROM uses WHERE time < ?", (now - 2 * self.retention,))
        (latest,) = database.execute("SELECT coalesce(max(number), 0) FROM uses").fetchone()
        database.execute("DELETE FROM uses WHERE number <= ?", (latest - self.max_rows,))
        older = latest - self.feature_rows
        database.execute("UPDATE uses SET features = NULL WHERE number <= ? AND features IS NOT NULL", (older,))

    def _drop(self, number: int) -> None:
        self.dropped += number
        self._count("dropped", number)


def _insert(database: sqlite3.Connection, uses: Sequence[Use]) -> None:
    """One statement for many rows, because the interpreter may switch threads between statements."""
    row = f"({', '.join('?' * len(Use._fields))})"
    values = [value for use in uses for value in use]
    database.execute(f"INSERT INTO uses ({FIELDS}) VALUES {', '.join([row] * len(uses))} {UPDATE}", values)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the use log of a gateway, which may be running; it cannot write."""
    if not path.is_file():
        raise FeddrmError(f"there is no use log {path}: give the FILE of 'feddrm serve --use-log FILE'")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            database.execute("SELECT number, outcome FROM uses LIMIT 0")
            yield database
    except sqlite3.Error as error:
        raise FeddrmError(f"{path} is no use log ({error}): give the FILE of 'feddrm serve --use-log FILE'") from error


def _open(path: Path) -> sqlite3.Connection:
    try:
        database: Any = SqliteDatabase(str(path)).connect()
        database.execute(SCHEMA)
        if not _has_callers(database):
            _add_callers(database)
        database.execute("CREATE INDEX IF NOT EXISTS uses_outcome ON uses (outcome_time) WHERE outcome IS NOT NULL")
        database.commit()
        database.execute(f"SELECT {FIELDS}, outcome FROM uses LIMIT 0")
    except sqlite3.Error as error:
        raise FeddrmError(f"cannot open the use log {path} ({error}): choose another --use-log") from error
    except OSError as error:
        raise FeddrmError(f"cannot open the use log {path} ({error.strerror}): choose another --use-log") from error
    connection: sqlite3.Connection = database
    return connection


def _has_callers(database: sqlite3.Connection) -> bool:
    return any(name == "caller" for _, name, *_ in database.execute("PRAGMA table_info(uses)"))


def _add_callers(database: sqlite3.Connection) -> None:
    """Copy the table of an older version, whose answers have no caller: SQLite cannot change what is unique."""
    kept = f"number, {OLDER_FIELDS}, outcome, outcome_time, outcome_caller"
    with database:
        database.execute("BEGIN IMMEDIATE")
        if _has_callers(database):  # another gateway was faster
            return
        database.execute("ALTER TABLE uses RENAME TO older_uses")
        database.execute(SCHEMA)
        database.execute(f"INSERT INTO uses ({kept}, caller) SELECT {kept}, '' FROM older_uses")
        database.execute("DROP TABLE older_uses")


@contextlib.contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose changes are committed together at the end, or not at all."""
    database = _open(path)
    try:
        database.execute("BEGIN IMMEDIATE")
        with database:
            yield database
    finally:
        SqliteDatabase(str(path)).close(database)  # the file may have been moved meanwhile
