"""Progress: a bar on a terminal, and a few lines elsewhere, always on standard error."""

from __future__ import annotations

import sys
import threading

import pytest

from feddrm import progress
from feddrm.progress import current_step, progress_bar


def test_notable_steps_are_lines_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    with progress_bar("demo") as advance:
        advance(1, 5, "loss 2", False)
        advance(2, 5, "loss 1", True)
        advance(3, None, "waiting", True)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "demo: round 2 of 5, loss 1\ndemo: waiting\n")


def test_lines_are_ten_seconds_apart(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar("demo") as advance:
        for clock[0] in (5.0, 11.0, 15.0, 21.5):
            advance(int(clock[0]), 30, "running", True)
    assert capsys.readouterr().err.splitlines() == ["demo: round 11 of 30, running", "demo: round 21 of 30, running"]


def test_a_long_first_step_is_said_so_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LONG_STEP", 0.01)
    with progress_bar("demo") as advance:
        for timer in threading.enumerate():  # reading until the line comes could lose it: reading empties the capture
            if isinstance(timer, threading.Timer):
                timer.join()
        advance(1, 5, "loss 1", True)
    assert capsys.readouterr().err == "demo: the first step takes longer than 0.01 s\n"


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("demo") as advance:
        advance(2, 5, "loss 1", False)
    out, err = capsys.readouterr()
    assert out == ""
    assert all(part in err for part in ("demo", "2/5", "loss 1"))


@pytest.mark.parametrize("terminal", [True, False])
def test_the_current_step_is_for_terminals_alone(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    with current_step() as show:
        show("first")
        show("second")
    out, err = capsys.readouterr()
    assert out == ""
    assert ("second" in err) is terminal
