from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from feddrm.serve.feedback import use_log
from feddrm.serve.feedback.use_log import FIELDS, Outcome, OutcomeProblem, StoredOutcome, Use, UseLog, reading
from refusal import refused
from serving import Launch

DAY = 86400.0


def use(request_id: str = "a", place: int = 0, label: str | None = "seven", **fields: Any) -> Use:
    given = Use(time.time(), request_id, place, "predict", "v1", "oslo", label, 0.9, "" if label else "unsure")
    return given._replace(**fields)


def rows(path: Path, columns: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.execute(f"SELECT {columns} FROM uses ORDER BY number"))


def log_of(path: Path, *uses: Use, **limits: Any) -> UseLog:
    """A use log with these answers; nothing waits to be written."""
    made = UseLog(path, **({"retention_days": 1, "max_rows": 1000} | limits))
    for one in uses:
        made.add(one)
    made.close()
    return made


def test_outcomes_are_right_wrong_or_of_an_abstention(tmp_path: Path) -> None:
    log = log_of(tmp_path / "uses.sqlite", use("a"), use("b"), use("c", label=None))
    outcomes = [Outcome("a", "seven"), Outcome("b", "one"), Outcome("c", "one")]
    assert log.add_outcomes(outcomes, "lab") == [
        StoredOutcome("v1", "right"), StoredOutcome("v1", "wrong"), StoredOutcome("v1", "abstained"),
    ]  # fmt: skip
    assert rows(log.path, "request_id, outcome, outcome_caller") == [
        ("a", "seven", "lab"), ("b", "one", "lab"), ("c", "one", "lab"),
    ]  # fmt: skip
    assert log.add_outcomes(outcomes[:1], "lab") == [None]  # known already
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600  # it has labels


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (Outcome("z", "one"), "unknown", ["'z' is unknown", "1,000"]),
        (Outcome("old", "one"), "late", ["'old'", "1 days"]),
        (Outcome("routed", "one"), "routed", ["'routed' was routed only"]),
        (Outcome("two", "one"), "ambiguous", ["'two' had 2 samples", "'place'"]),
        (Outcome("two", "one", 2), "ambiguous", ["none has place 2"]),
        (Outcome("known", "one"), "conflict", ["'known' has the outcome 'seven' already, not 'one'"]),
    ],
)
def test_an_outcome_that_cannot_be_stored_is_named_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, kind: str, words: list[str]
) -> None:
    monkeypatch.setattr("feddrm.serve.feedback.use_log.FLUSH_SECONDS", 0.01)
    old = time.time() - 1.5 * DAY
    answers = [use("a"), use("old", time=old), use("routed", action="route"), use("two"), use("two", 1), use("known")]
    log = log_of(tmp_path / "uses.sqlite", *answers)
    log.add_outcomes([Outcome("known", "seven")])
    with pytest.raises(OutcomeProblem) as caught:
        log.add_outcomes([Outcome("a", "seven"), outcome])
    assert caught.value.kind == kind
    assert all(word in str(caught.value) for word in words)
    assert ("a", None) in rows(log.path, "request_id, outcome")  # the whole batch was refused


def test_content_goes_after_the_retention_and_the_answer_after_twice_that_time(tmp_path: Path) -> None:
    now = time.time()
    answers = [
        use(name, time=now - days * DAY, features=b"1234") for name, days in (("c", 2.5), ("b", 1.5), ("a", 0.5))
    ]
    log = log_of(tmp_path / "uses.sqlite", *answers, feature_rows=1000)
    assert rows(log.path, "request_id, action, label, client, features") == [
        ("b", "", None, None, None), ("a", "predict", "seven", "oslo", b"1234"),
    ]  # fmt: skip


def test_the_number_of_answers_and_of_features_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "uses.sqlite"
    log = UseLog(path, retention_days=1, max_rows=100, feature_rows=10)
    for part in range(3):
        log._write([use(f"{part}-{i}", features=b"1234") for i in range(100)])
    log.close()
    kept = rows(path, "request_id, features IS NOT NULL")
    assert [name for name, _ in kept] == [f"2-{i}" for i in range(100)]
    assert [has for _, has in kept] == [0] * 90 + [1] * 10


def test_of_two_answers_with_one_request_id_the_latest_counts_until_it_has_an_outcome(tmp_path: Path) -> None:
    log = log_of(tmp_path / "uses.sqlite", use("a", label="one"), use("a", label="two"))
    assert log.add_outcomes([Outcome("a", "two")]) == [StoredOutcome("v1", "right")]
    log._write([use("a", label="three")])
    assert rows(log.path, "label, outcome") == [("two", "two")]


def test_a_caller_reports_the_outcomes_of_its_own_answers_only(tmp_path: Path) -> None:
    answers = [use("a", caller="lab"), use("b", caller="lab"), use("b", caller="ward", label="one"), use("open")]
    log = log_of(tmp_path / "uses.sqlite", *answers)
    with pytest.raises(
        OutcomeProblem, match=r"'a' is unknown: .* send the request_id of an answer to 'ward'"
    ) as caught:
        log.add_outcomes([Outcome("a", "one")], "ward")
    assert caught.value.kind == "unknown"
    with pytest.raises(OutcomeProblem, match="'a' is unknown"):
        log.add_outcomes([Outcome("a", "one")])
    assert log.add_outcomes([Outcome("a", "seven"), Outcome("b", "one")], "lab") == [
        StoredOutcome("v1", "right"), StoredOutcome("v1", "wrong"),
    ]  # fmt: skip
    assert log.add_outcomes([Outcome("b", "one"), Outcome("open", "one")], "ward") == [
        StoredOutcome("v1", "right"), StoredOutcome("v1", "wrong"),
    ]  # fmt: skip
    assert rows(log.path, "request_id, caller, outcome") == [
        ("a", "lab", "seven"), ("b", "lab", "one"), ("b", "ward", "one"), ("open", "", "one"),
    ]  # fmt: skip


def test_the_log_of_an_older_version_goes_on_and_its_answers_have_no_caller(tmp_path: Path) -> None:
    path = tmp_path / "uses.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(
            """CREATE TABLE uses (number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, request_id TEXT, place INTEGER,
            action TEXT, artifact TEXT, client TEXT, label TEXT, label_probability REAL, reason TEXT, features BLOB,
            outcome TEXT, outcome_time REAL, outcome_caller TEXT, UNIQUE (request_id, place))"""
        )
        database.execute("CREATE INDEX uses_outcome ON uses (outcome_time) WHERE outcome IS NOT NULL")
        for number, one in ((5, use("a")), (7, use("b"))):
            values = (number, *one[:-1], "seven" if number == 5 else None, 3.5, "lab")
            database.execute(f"INSERT INTO uses VALUES ({', '.join('?' * len(values))})", values)
        database.commit()
    with reading(path) as older:
        assert older.execute("SELECT count(outcome) FROM uses").fetchone() == (1,)
    log = log_of(path, use("b", caller="lab"))
    found = "number, request_id, caller, label, outcome, outcome_time, outcome_caller"
    assert rows(path, found) == [
        (5, "a", "", "seven", "seven", 3.5, "lab"), (7, "b", "", "seven", None, 3.5, "lab"),
        (8, "b", "lab", "seven", None, None, None),
    ]  # fmt: skip
    assert log.add_outcomes([Outcome("a", "seven"), Outcome("b", "one")], "ward") == [
        None, StoredOutcome("v1", "wrong"),
    ]  # fmt: skip
    assert log.add_outcomes([Outcome("b", "seven")], "lab") == [StoredOutcome("v1", "right")]
    assert rows(path, "number, outcome") == [(5, "seven"), (7, "one"), (8, "seven")]
    with contextlib.closing(sqlite3.connect(path)) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%' ORDER BY name")
        assert names.fetchall() == [("uses",), ("uses_outcome",)]


def test_an_outcome_right_after_the_answer_finds_it(tmp_path: Path) -> None:
    log = UseLog(tmp_path / "uses.sqlite", retention_days=1, max_rows=100)
    log.add(use("a"))  # it waits to be written
    assert log.add_outcomes([Outcome("a", "seven")]) == [StoredOutcome("v1", "right")]
    log.close()


def test_answers_that_cannot_be_written_are_dropped_and_counted_and_writing_recovers(tmp_path: Path) -> None:
    counted: list[tuple[str, int]] = []
    path = tmp_path / "uses.sqlite"
    log = UseLog(path, retention_days=1, max_rows=100, on_count=lambda *count: counted.append(count))
    path.write_bytes(b"this is no database" * 100)
    log._write([use("a")])
    assert (log.dropped, log.trouble is None) == (1, False)
    path.unlink()
    log._write([use("b")])
    log.close()
    assert (log.trouble, counted[:2]) == (None, [("dropped", 1), ("written", 1)])
    assert rows(path, "request_id") == [("b",)]


def test_a_file_that_is_moved_while_it_is_written_has_what_counts_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, old = use_log._insert, tmp_path / "old.sqlite"

    def insert_and_move(*arguments: Any) -> None:
        insert(*arguments)
        (tmp_path / "uses.sqlite").rename(old)

    monkeypatch.setattr(use_log, "_insert", insert_and_move)
    log_of(tmp_path / "uses.sqlite", use("a"))
    assert rows(old, "request_id") == [("a",)]


def test_a_place_or_a_file_that_cannot_work_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "other.sqlite").write_text("this is no database" * 100)
    for path in (tmp_path / "nowhere" / "uses.sqlite", tmp_path / "other.sqlite"):
        with refused("cannot open the use log", path.name, "--use-log"):
            UseLog(path, retention_days=1, max_rows=100)
        with refused(path.name, "--use-log FILE"), reading(path):
            pass
    with contextlib.closing(sqlite3.connect(tmp_path / "old.sqlite")) as database:
        database.execute("CREATE TABLE uses (time REAL)")
    with refused("no use log", "old.sqlite"), reading(tmp_path / "old.sqlite"):
        pass
    assert FIELDS.startswith("time, request_id")


@pytest.mark.slow
def test_a_killed_gateway_keeps_what_it_has_confirmed(
    run: Path, launch: Launch, images: torch.Tensor, tmp_path: Path
) -> None:
    words = ["serve", run, "--demo", "--port", 0, "--audit", tmp_path / "audit.sqlite", "--use-log", tmp_path / "uses"]
    gateway = launch(*words)
    url = gateway.wait_ready()
    until = time.monotonic() + 60
    while not all(c["healthy"] for c in httpx.get(f"{url}/v1/clients").json()["clients"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    body = {"inputs": images[:2].tolist(), "abstain": "answer"}
    request_id = httpx.post(f"{url}/v1/predict", json=body, timeout=20).json()["request_id"]
    one = {"request_id": request_id, "label": "3", "place": 1}
    assert httpx.post(f"{url}/v1/outcomes", json=one).json() == {"stored": 1, "known": 0}
    os.kill(gateway.pid, signal.SIGKILL)
    gateway.wait()
    url = launch(*words).wait_ready()
    assert httpx.post(f"{url}/v1/outcomes", json=one).json() == {"stored": 0, "known": 1}
    other = httpx.post(f"{url}/v1/outcomes", json={**one, "place": 0})
    assert other.json() == {"stored": 1, "known": 0}
