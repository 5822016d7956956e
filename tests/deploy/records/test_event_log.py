"""The event log: what a line holds, and that the files stay small."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from feddrm.deploy import rotating_log
from feddrm.deploy.records.event_log import EventLog, read_events


def test_an_event_is_one_json_line_without_empty_details(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
    EventLog(tmp_path).write("site answered", {"site": "Zürich", "loss": None, "text": "two\nlines 100 % \x1b[1m"})
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event.pop("time") > 1.7e9
    assert event == {"event": "site answered", "site": "Zürich", "text": "two\nlines 100 % \x1b[1m"}
    assert read_events(tmp_path)[0]["site"] == "Zürich"


def test_half_of_a_surrogate_pair_does_not_stop_the_writer(tmp_path: Path) -> None:
    EventLog(tmp_path).write("complaint", {"text": "\ud800"})
    assert read_events(tmp_path)[0]["text"] == "\ud800"


@pytest.mark.parametrize("last", [None, 1, 10])
def test_a_cut_line_hides_no_other_event(tmp_path: Path, last: int | None) -> None:
    """A killed process or a full disk may cut a line anywhere; the next event begins a new one."""
    EventLog(tmp_path).write("first", {})
    path = tmp_path / "events.jsonl"
    path.write_text(path.read_text() + '{"time": 1, "event": "comp')
    EventLog(tmp_path).write("second", {})
    names = [event["event"] for event in read_events(tmp_path, last)]
    assert names == (["second"] if last == 1 else ["first", "second"])


def test_the_files_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if several objects write from several threads; no line is cut."""
    monkeypatch.setattr(rotating_log, "MOST_BYTES", 2000)

    def write(number: int) -> None:
        log = EventLog(tmp_path)
        for i in range(50):
            log.write("round started", {"round": i, "thread": number})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = sorted(tmp_path.glob("events.jsonl*"))
    assert len(files) == 1 + rotating_log.KEPT
    assert all(path.stat().st_size <= 2000 for path in files)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files), "only their owner can read them"
    assert all(json.loads(line)["event"] == "round started" for path in files for line in path.read_text().splitlines())
    assert read_events(tmp_path, last=1) == read_events(tmp_path)[-1:]
