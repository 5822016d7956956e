"""What a site knows of its federation."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddrm.deploy.site import site_status
from feddrm.deploy.site.site_status import CONNECTED, SiteStatus, read_site_status


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(site_status.time, "time", lambda: now[0])
    return now


def test_a_change_of_the_connection_is_logged_once_with_its_time(
    tmp_path: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "feddrm.deploy")
    assert read_site_status(tmp_path) is None
    status = SiteStatus(tmp_path)
    for clock[0], text in ((1.0, "nothing listens there"), (2.0, "nothing listens there"), (3.0, CONNECTED)):
        status.connection(text)
        if clock[0] == 2.0:
            assert read_site_status(tmp_path) == {"connected": False, "reason": "nothing listens there", "since": 1.0}
    assert read_site_status(tmp_path) == {"connected": True, "reason": "", "since": 3.0}
    assert [record.getMessage() for record in caplog.records] == [
        "not connected: nothing listens there",
        "connected to the server",
    ]


def test_a_refusal_is_logged_once(tmp_path: Path, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk neither status nor events can be written: nobody at the site learned of it."""
    status, train = SiteStatus(tmp_path), {"kind": "train", "round": 4}
    for error in ("", "the disk is full", "", "the disk is full", "a floor\n\x1b[2J \ud800"):
        status.message(train, error)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 'train': the disk is full",
        "refused 'train': a floor \\x1b[2J \\ud800",
    ]


def test_whom_the_server_waits_for_is_shown_until_its_next_message(tmp_path: Path, clock: list[float]) -> None:
    status = SiteStatus(tmp_path)
    status.message({"kind": "train", "round": 4, "brief": {"run": "first"}})
    status.message({"kind": "waiting", "for": {"lima": 60.0}})
    current = SiteStatus(tmp_path).values  # as after a restart
    assert current["message"] == {"kind": "train", "run": "first", "round": 4, "time": 100.0, "error": ""}
    assert current["waiting"] == {"lima": 60.0}
    status.connection(CONNECTED)
    assert status.values["waiting"] == {"lima": 60.0}
    status.connection("nothing listens there")
    assert status.values["waiting"] == {}, "it hears of nobody any more"
    status.message({"kind": "waiting", "for": {"lima": 60.0}})
    status.message({"kind": "hello"}, "another run")
    assert status.values["waiting"] == {}
    assert status.values["message"]["error"] == "another run"
