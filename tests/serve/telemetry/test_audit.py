from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError
from feddrm.serve.telemetry import audit
from feddrm.serve.telemetry.audit import AuditLog, AuditRecord
from postgres import INSTALLED, Cluster, cluster
from refusal import refused


def record(when: float, client: str | None = "oslo") -> AuditRecord:
    return AuditRecord(when, "id", "lab", "route", "v1", 2, "0,3", client, 0.9, 0.8, 0, "", "", "", 1.5)


def stored_rows(path: Path | str) -> list[tuple[object, ...]]:
    query = f"SELECT {', '.join(AuditRecord._fields)} FROM decisions ORDER BY time"
    if "://" in str(path):
        import psycopg

        with psycopg.connect(str(path)) as database:
            return list(database.execute(query))
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.execute(query))


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    pytest.importorskip("psycopg", reason="pip install 'feddrm[postgres]' to run this")
    if not INSTALLED:
        pytest.skip("needs Debian's postgresql: apt-get install it")
    with cluster() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for an audit log."""
    if request.param == "sqlite":
        return str(tmp_path / "audit.sqlite")
    cluster: Cluster = request.getfixturevalue("server")
    return cluster.url


@pytest.mark.slow
def test_records_beyond_the_retention_are_deleted_and_the_others_are_stored_exactly(place: str) -> None:
    now = time.time()
    given = [record(now - days * 86400, client) for days, client in ((3, "lima"), (0.5, 'o"slo ü'), (0, None))]
    log = AuditLog(place, retention_days=1)
    for one in given:
        log.add(one)
    log.close()
    assert stored_rows(place) == [tuple(one) for one in given[1:]]
    assert (log.written, log.dropped, log.trouble) == (3, 0, None)
    again = AuditLog(place, retention_days=1)  # the table exists already
    for _ in range(1200):  # more rows than one statement inserts
        again.add(record(now + 1))
    again.close()
    assert len(stored_rows(place)) == 1202


@pytest.mark.slow
def test_a_text_that_no_database_takes_is_cleaned_and_the_batch_is_stored(place: str) -> None:
    now = time.time() + 100  # after what the server has already
    names = ["lab", "l\0b", "l\udcffb", "l\ud83d\ude00b", "ü\n\u200b\U0001f600"]
    given = [record(now + i)._replace(caller=name, failed=name) for i, name in enumerate(names)]
    log = AuditLog(place, retention_days=1)
    for one in given:
        log.add(one)
    log.close()
    assert (log.written, log.dropped, log.trouble) == (len(given), 0, None)
    kept = ["lab", "l\ufffdb", "l\ufffdb", "l\ufffd\ufffdb", names[-1]]
    expected = [one._replace(caller=name, failed=name) for one, name in zip(given, kept, strict=True)]
    assert stored_rows(place)[-len(given) :] == [tuple(one) for one in expected]


def test_an_unreachable_database_is_an_error_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="pip install 'feddrm[postgres]' to run this")
    with pytest.raises(FeddrmError) as caught:
        AuditLog("postgresql://me:secret@127.0.0.1:9/x", 1)
    assert str(caught.value).startswith("cannot open the audit log's database (")
    assert "--audit" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("password", ["sec%ret", "sec ret", "sec@ret", "sec/ret", "sec?ret", "sec[ret"])
def test_no_error_quotes_a_password_that_splits_the_url(password: str) -> None:
    pytest.importorskip("psycopg", reason="pip install 'feddrm[postgres]' to run this")
    with pytest.raises(FeddrmError) as caught:
        AuditLog(f"postgresql://me:{password}@127.0.0.1:9/x", 1)
    assert "sec" not in str(caught.value)
    assert "ret" not in str(caught.value)


@pytest.mark.slow
def test_a_log_of_the_version_before_traces_goes_on(place: str, tmp_path: Path) -> None:
    AuditLog(place, 1).close()
    older = "ALTER TABLE decisions DROP COLUMN trace_id"
    if "://" in place:
        import psycopg

        with psycopg.connect(place) as database:
            database.execute("DELETE FROM decisions")
            database.execute(older)
    else:
        with contextlib.closing(sqlite3.connect(place)) as file:
            file.execute(older)
    now = time.time()
    for _ in range(2):  # the column is added once
        log = AuditLog(place, 1)
        log.add(record(now)._replace(trace_id="4bf9"))
        log.close()
    assert [row[-1] for row in stored_rows(place)] == ["4bf9"] * 2


def test_a_log_of_another_version_is_an_error(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.sqlite")) as database:
        database.execute("CREATE TABLE decisions (time DOUBLE PRECISION, client TEXT)")
    with refused("another version", "--audit"):
        AuditLog(str(tmp_path / "audit.sqlite"), 1)


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_writing_recovers_after_an_error(tmp_path: Path) -> None:
    counted: list[tuple[str, int]] = []
    path = tmp_path / "audit.sqlite"
    log = AuditLog(str(path), 1, on_count=lambda what, number: counted.append((what, number)))
    other = sqlite3.connect(path)
    other.execute("DROP TABLE decisions")  # any error will do
    other.commit()
    log.add(record(time.time()))
    wait(lambda: log.dropped == 1)
    log.add(record(time.time(), "lima"))
    log.close()
    other.close()
    assert [row[AuditRecord._fields.index("client")] for row in stored_rows(path)] == ["lima"]
    assert counted == [("dropped", 1), ("written", 1)]


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_new_file_is_started_when_the_old_one_was_removed_or_moved(tmp_path: Path, how: str) -> None:
    """All counted records can be read: earlier ones in the moved file, later ones at the old place."""
    path, old = tmp_path / "audit.sqlite", tmp_path / "old.sqlite"
    log = AuditLog(str(path), 1)
    log.add(record(time.time(), "before"))
    wait(lambda: log.written == 1)
    if how == "removed":
        path.unlink()
    else:
        path.rename(old)
    if how == "replaced":
        path.touch()
    log.add(record(time.time(), "after"))
    log.close()
    assert (log.written, log.dropped, log.trouble) == (2, 0, None)
    client = AuditRecord._fields.index("client")
    assert [row[client] for row in stored_rows(path)] == ["after"]
    if how != "removed":
        assert [row[client] for row in stored_rows(old)] == ["before"]


def test_a_file_that_is_moved_just_before_the_end_has_all_records(tmp_path: Path) -> None:
    """No record follows the move, so the end itself must take the latest ones to the moved file."""
    path, old = tmp_path / "audit.sqlite", tmp_path / "old.sqlite"
    log = AuditLog(str(path), 1)
    log.add(record(time.time(), "before"))
    wait(lambda: log.written == 1)
    path.rename(old)
    log.close()
    assert [row[AuditRecord._fields.index("client")] for row in stored_rows(old)] == ["before"]


def test_records_are_dropped_while_the_folder_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AuditLog(str(folder / "audit.sqlite"), 1)
    folder.rename(tmp_path / "old")
    log.add(record(time.time()))
    wait(lambda: log.dropped == 1)
    assert log.trouble is not None
    folder.mkdir()
    log.add(record(time.time(), "after"))
    log.close()
    assert (log.written, log.dropped, log.trouble) == (1, 1, None)


def test_only_its_owner_can_read_a_new_file(tmp_path: Path) -> None:
    """The permissions of an existing file do not change."""
    old, new = tmp_path / "old.sqlite", tmp_path / "new.sqlite"
    old.touch(0o640)
    old.chmod(0o640)
    for path in (old, new):
        log = AuditLog(str(path), 1)
        log.add(record(time.time()))
        wait(lambda log=log: log.written == 1)
        modes = {place.stat().st_mode & 0o777 for place in tmp_path.glob(f"{path.name}*")}
        log.close()
        assert modes == {0o640 if path == old else 0o600}


def test_a_write_that_does_not_end_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is frozen gives no error."""
    monkeypatch.setattr(audit, "SLOW_SECONDS", -1.0)
    go_on, begun = threading.Event(), threading.Event()
    log = AuditLog(str(tmp_path / "audit.sqlite"), 1)

    def insert(*_: object) -> None:
        begun.set()
        go_on.wait()

    monkeypatch.setattr(log._database, "insert", insert)
    log.add(record(time.time()))
    begun.wait()
    assert "a write takes longer" in (log.trouble or "")
    go_on.set()
    log.close()
    assert log.trouble is None


@pytest.mark.slow
def test_a_server_that_has_vanished_is_noticed_unless_the_url_says_otherwise(server: Cluster) -> None:
    for more, expected in (("", "15000"), ("&tcp_user_timeout=7000", "7000")):
        log = AuditLog(server.url + more, 1)
        assert log._connection.info.get_parameters()["tcp_user_timeout"] == expected  # type: ignore[union-attr]
        log.close()


def test_impossible_places_are_errors(tmp_path: Path) -> None:
    with refused("cannot open the audit log", "--audit"):
        AuditLog(str(tmp_path / "no" / "such" / "folder.sqlite"), 1)
    with refused("postgresql://"):
        AuditLog("mysql://x", 1)


@pytest.mark.slow
def test_gateways_that_start_at_once_share_an_empty_database(server: Cluster) -> None:
    import psycopg

    with psycopg.connect(server.url) as database:
        database.execute("DROP TABLE IF EXISTS decisions")
    with ThreadPoolExecutor(8) as pool:
        logs = list(pool.map(lambda _: AuditLog(server.url, 1), range(8)))
    for log in logs:
        log.add(record(time.time()))
        log.close()
    assert len(stored_rows(server.url)) == 8


@pytest.mark.slow
def test_a_role_that_can_only_write_to_the_table_is_enough(server: Cluster) -> None:
    import psycopg

    AuditLog(server.url, 1).close()
    with psycopg.connect(server.url) as database:
        database.execute("CREATE ROLE gateway LOGIN")
        database.execute("GRANT SELECT, INSERT, DELETE ON decisions TO gateway")
    log = AuditLog(server.url.replace("postgres@", "gateway@"), 1)
    log.add(record(time.time()))
    log.close()
    assert (log.written, log.trouble) == (1, None)


# The last test of this file uses the database server, because the server is stopped as part of the last test.
@pytest.mark.slow
def test_records_are_dropped_while_the_database_is_down_and_written_when_it_is_back(server: Cluster) -> None:
    log = AuditLog(server.url, 1)
    server.stop()
    try:
        log.add(record(time.time(), "lost"))
        wait(lambda: log.dropped == 1)
        assert log.trouble is not None
    finally:
        server.start()
    log.add(record(time.time(), "found"))
    log.close()
    assert log.trouble is None
    clients = [row[AuditRecord._fields.index("client")] for row in stored_rows(server.url)]
    assert "found" in clients
    assert "lost" not in clients
