from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from feddrm.serve.audit import AuditLog, Record
from refusal import refused


def record(when: float, client: str = "oslo") -> Record:
    return Record(when, "id", "lab", "route", "v1", 2, "0,3", client, 0.9, 0.8, 0, "", "", "", 1.5)


def stored(path: Path) -> list[str]:
    base = sqlite3.connect(path)
    try:
        return [client for (client,) in base.execute("SELECT client FROM decisions ORDER BY time")]
    finally:
        base.close()


def test_old_decisions_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    log = AuditLog(str(path), retention_days=1)
    for days, client in ((3, "lima"), (0.5, "oslo"), (0, "rio")):
        log.add(record(time.time() - days * 86400, client))
    log.close()
    assert stored(path) == ["oslo", "rio"]
    assert (log.written, log.dropped) == (3, 0)


def test_it_recovers_when_there_is_room_again(tmp_path: Path) -> None:
    counted: list[tuple[str, int]] = []
    path = tmp_path / "audit.sqlite"
    log = AuditLog(str(path), 1, on_count=lambda what, number: counted.append((what, number)))
    other = sqlite3.connect(path)
    other.execute("DROP TABLE decisions")  # whatever it is that goes wrong
    other.commit()
    log.add(record(time.time()))
    until = time.monotonic() + 10
    while not log.dropped and time.monotonic() < until:
        time.sleep(0.02)
    log.add(record(time.time(), "lima"))
    log.close()
    other.close()
    assert stored(path) == ["lima"]
    assert counted == [("dropped", 1), ("written", 1)]


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with refused("cannot open the audit log", "--audit"):
        AuditLog(str(tmp_path / "no" / "such" / "folder.sqlite"), 1)
    with refused("postgresql://"):
        AuditLog("mysql://x", 1)
