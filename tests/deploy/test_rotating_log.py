"""The logs of servers and sites: times in UTC, no colours, limited size."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from feddrm.deploy import rotating_log
from feddrm.deploy.rotating_log import LOG, RotatingLog, last_line, log, logging_to, utc
from feddrm.errors import FeddrmError

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_times_are_in_utc() -> None:
    assert utc(0.0) == "1970-01-01T00:00:00Z"


def test_the_last_line_since_a_time(tmp_path: Path) -> None:
    path = tmp_path / LOG
    assert last_line(path, 0.0) is None
    path.write_text("1970-01-01T00:00:10Z old\n1970-01-01T00:00:20Z a fault\nTraceback\nOSError: x\n\n")
    assert last_line(path, 20.9) == "OSError: x"
    assert last_line(path, 21.0) is None


def test_a_log_rotates_and_keeps_a_few_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating_log, "MOST_BYTES", 200)
    file = RotatingLog(tmp_path / "a.log")
    for number in range(100):
        file.line(f"line {number}")
    file.close()
    assert {path.name for path in tmp_path.iterdir()} == {"a.log", "a.log.1", "a.log.2", "a.log.3"}
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    assert (tmp_path / "a.log").read_text().endswith("line 99\n")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir()), "only their owner can read them"


def test_our_lines_and_flowers_go_to_the_file_and_to_standard_error_without_colours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(tmp_path):
        log.info("connected")
        logging.getLogger("flwr").error("\x1b[91mbroken\x1b[0m")
        logging.getLogger("flwr").warning("Connection attempt failed, retrying")  # many of these say nothing
    text = (tmp_path / LOG).read_text()
    assert re.fullmatch(rf"{TIME} connected\n{TIME} broken\n", text)
    assert capsys.readouterr().err == text
    log.info("after the end")
    assert (tmp_path / LOG).read_text() == text


def test_a_full_disk_loses_lines_and_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    file = RotatingLog(Path("/dev/full"))
    file.line("no room")
    file.close()
    assert capsys.readouterr().err == ""


def test_the_error_that_ends_a_process_is_in_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FeddrmError), logging_to(tmp_path):
        raise FeddrmError("the port is taken: choose another")
    assert re.fullmatch(rf"{TIME} error: the port is taken: choose another\n", (tmp_path / LOG).read_text())
    assert not capsys.readouterr().err, "the command line prints it once"
    with pytest.raises(KeyError), logging_to(tmp_path):
        raise KeyError("fault")
    assert "Traceback" in (tmp_path / LOG).read_text()
