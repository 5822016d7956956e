"""The server's status files."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from feddrm.deploy.process_lock import LOCK
from feddrm.deploy.records.event_log import read_events
from feddrm.deploy.server.status import COMPLAINTS, JOB, ServerStatus, last_complaint, read_status, why_stopped


def test_the_last_status_is_read_back(tmp_path: Path) -> None:
    assert read_status(tmp_path, "first") is None
    status = ServerStatus(tmp_path)
    status.record("waiting", {"round": 0, "for": "lima"})
    status.record("round finished", {"round": 1, "answered": ["Zürich"]})
    status.record("complaint", {"text": "oslo is unwell"})
    current = read_status(tmp_path, "first")
    assert current is not None
    assert current.pop("time") > 0
    assert current == {"what": "training", "round": 1, "answered": ["Zürich"]}


def test_a_complaint_is_logged_once_and_a_failure_every_time(tmp_path: Path) -> None:
    """Also if two sites complain in turns."""
    assert last_complaint(tmp_path) is None
    status = ServerStatus(tmp_path)
    for _ in range(3):
        for name in ("oslo", "lima"):
            status.record("complaint", {"text": f"{name} is unwell"})
    assert (tmp_path / "complaints.log").read_text().count("\n") == 2
    for _ in range(2):
        status.record("failed", {"text": "the run failed"})
    assert (tmp_path / "complaints.log").read_text().count("\n") == 4
    assert (last_complaint(tmp_path) or "").endswith(" the run failed")


def test_the_status_of_one_run_is_not_that_of_the_next(tmp_path: Path) -> None:
    status, job = ServerStatus(tmp_path), tmp_path / JOB
    job.write_text('{"run": "first"}')
    status.record("finished", {"round": 6})
    assert (read_status(tmp_path, "first") or {})["what"] == "finished"
    assert read_status(tmp_path, "second") is None
    job.unlink()
    assert why_stopped(tmp_path, "second", begun=False) is None


def test_what_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    """As on a full disk. The run ends with its own reason; the server must go on."""
    status = ServerStatus(tmp_path / "nowhere")
    status.record("complaint", {"text": "oslo is unwell"})
    status.record("failed", {"text": "cannot write the checkpoint"})
    assert not list(tmp_path.iterdir())


def test_sites_that_go_and_come_back_are_logged_and_the_status_stays(tmp_path: Path) -> None:
    status = ServerStatus(tmp_path)
    status.record("round finished", {"round": 1})
    for event in ("away", "returned", "away", "returned"):
        status.record(event, {"text": f"lima: {event}"})
    lines = (tmp_path / "complaints.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["lima: away", "lima: returned"] * 2
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    current = read_status(tmp_path, "first")
    assert current is not None
    assert (current["what"], current["round"]) == ("training", 1)


def test_whose_answers_are_missing_is_part_of_the_status_until_the_next(tmp_path: Path) -> None:
    status = ServerStatus(tmp_path)
    status.record("outstanding", {"waiting": {"lima": 5.0}})
    assert (read_status(tmp_path, "first") or {})["waiting"] == {"lima": 5.0}
    status.record("round finished", {"round": 1})
    status.record("outstanding", {"waiting": {"pune": 6.0}})
    current = read_status(tmp_path, "first") or {}
    assert (current["what"], current["round"], current["waiting"]) == ("training", 1, {"pune": 6.0})
    status.record("round finished", {"round": 2})
    assert "waiting" not in (read_status(tmp_path, "first") or {})


def test_every_event_is_written_and_what_repeats_itself_only_once(tmp_path: Path) -> None:
    status = ServerStatus(tmp_path)
    missing = {"site": "lima", "kind": "train", "round": 1, "reason": "timed out"}
    for event, details in [
        *[("site missing", missing)] * 3,
        ("site missing", {**missing, "site": "pune"}),
        ("site missing", {**missing, "reason": "not connected"}),
        ("site answered", {"site": "lima", "kind": "train", "round": 1}),
        *[("site missing", {**missing, "reason": "not connected"})] * 2,
        *[("waiting", {"round": 1, "for": "lima", "waiting": {"lima": 5.0}})] * 2,
        ("outstanding", {"waiting": {"lima": 5.0}}),
        *[("complaint", {"text": "lima is unwell"})] * 2,
        *[("failed", {"text": "the run failed"})] * 2,
    ]:
        status.record(event, details)
    assert [(event["event"], event.get("site")) for event in read_events(tmp_path)] == [
        ("site missing", "lima"),
        ("site missing", "pune"),
        ("site missing", "lima"),
        ("site answered", "lima"),
        ("site missing", "lima"),
        ("waiting", None),
        ("complaint", None),
        ("failed", None),
        ("failed", None),
    ]


def test_every_status_of_a_run_says_how_many_rounds_it_has(tmp_path: Path) -> None:
    status = ServerStatus(tmp_path)
    shown = []
    for event, details in [
        ("waiting", {"round": 0, "for": "lima"}),
        ("run started", {"run": "first", "rounds": 2}),
        ("waiting", {"round": 1, "for": "lima"}),
        ("fitting the router", {"round": 2, "step": 1}),
        ("failed", {"text": "the run failed"}),
        ("waiting", {"round": 0, "for": "pune"}),
    ]:
        status.record(event, details)
        shown.append((read_status(tmp_path, "first") or {}).get("rounds"))
    assert shown == [None, None, 2, 2, 2, None], "the next run may have another number"


def test_a_complaint_of_an_earlier_start_is_not_current(tmp_path: Path) -> None:
    """What was told before the server, or the run, was started again may have been corrected."""
    status = ServerStatus(tmp_path)
    (tmp_path / COMPLAINTS).write_text("2020-01-01T00:00:00Z oslo is unwell\n")
    assert (last_complaint(tmp_path) or "").endswith("oslo is unwell"), "nothing was started since"
    for name in (LOCK, JOB):
        (tmp_path / name).write_text('{"run": "first"}')
        assert last_complaint(tmp_path) is None
        os.utime(tmp_path / name, (0, 0))
    status.record("finished", {"round": 6})
    assert last_complaint(tmp_path) is None
    assert "oslo is unwell" in (tmp_path / COMPLAINTS).read_text()


def test_what_is_still_wrong_after_another_start_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is not registered was complained of once as long as the server ran, whatever run was started."""
    status, now = ServerStatus(tmp_path), [100.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    (tmp_path / JOB).write_text('{"run": "first"}')
    for now[0], start in ((100.0, 50.0), (200.0, 50.0), (300.0, 250.0), (400.0, 250.0)):
        os.utime(tmp_path / JOB, (start, start))
        status.record("complaint", {"text": "refused a node"})
    lines = (tmp_path / COMPLAINTS).read_text().splitlines()
    assert lines == ["1970-01-01T00:01:40Z refused a node", "1970-01-01T00:05:00Z refused a node"]
