"""Whom the server waits for, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from feddrm.deploy.wire import attendance
from feddrm.deploy.wire.attendance import Attendance


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(attendance.time, "time", lambda: now[0])
    return now


def test_a_site_that_is_away_and_comes_back_is_reported_once_each(clock: list[float]) -> None:
    events: list[tuple[str, Any]] = []
    present = Attendance(lambda event, details: events.append((event, details["text"])))
    present.left_out("lima")
    clock[0] = 109.0
    present.left_out("lima")
    assert not events, "it may just be starting"
    clock[0] = 130.0
    present.left_out("lima")
    assert present.since == {"lima": 100.0}, "since it was first missed"
    clock[0] = 195.0
    present.heard_from("lima")
    present.heard_from("lima")
    assert [event for event, _ in events] == ["away", "returned"]
    assert events[1][1] == "lima is back after 95 s"
    assert not present.since


def test_a_slow_site_is_waited_for_and_is_not_said_to_be_back(clock: list[float]) -> None:
    events: list[tuple[str, Any]] = []
    present = Attendance(lambda event, details: events.append((event, dict(details))))
    present.left_out("oslo")
    clock[0] = 102.0
    assert present.waiting_for(["lima"]) == {"lima": 102.0}
    clock[0] = 104.0
    assert present.waiting_for(["lima"]) == {"lima": 102.0}
    present.heard_from("lima")
    assert events == [("outstanding", {"waiting": {"lima": 102.0}})] * 2


def test_a_removed_site_is_not_waited_for(clock: list[float]) -> None:
    present = Attendance(lambda event, details: None)
    for clock[0] in (100.0, 120.0):
        present.left_out("oslo")
        present.left_out("lima")
    present.forget(["oslo", "pune"])
    assert set(present.since) == present.away == {"oslo"}
