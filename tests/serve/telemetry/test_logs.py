from __future__ import annotations

import io
import json
import logging
import threading
from pathlib import Path

import pytest

from feddrm.serve.telemetry import logs
from feddrm.serve.telemetry.logs import JsonLogHandler
from serving import Launch


class BlockedStream(io.BytesIO):
    """A stream whose writes block until ``release`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def write(self, data: object) -> int:
        self.release.wait(10)
        return super().write(data)  # type: ignore[arg-type]


def read_lines(stream: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_record_becomes_a_json_line_with_its_stack_trace() -> None:
    stream = io.BytesIO()
    handler = JsonLogHandler(stream)
    try:
        raise ValueError("inside")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "it %s", ("failed",), info)
    record.fields = {"path": "/v1/route", "odd": object, "half": "\ud800"}
    handler.handle(record)
    handler.close()
    (line,) = read_lines(stream)
    assert (line["level"], line["message"], line["path"]) == ("error", "it failed", "/v1/route")
    assert "ValueError: inside" in str(line["trace"])


def test_a_blocked_stream_drops_lines_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CAPACITY", 10)
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.01)
    stream = BlockedStream()
    handler = JsonLogHandler(stream)
    for number in range(100):
        handler.put(0.0, "info", "request", {"number": number})
    stream.release.set()
    handler.close()
    lines = read_lines(stream)
    written = [line["number"] for line in lines if line["message"] == "request"]
    dropped = sum(int(str(line["number"])) for line in lines if line["message"] == "log lines dropped")
    assert written == sorted(written, key=int)  # type: ignore[arg-type, call-overload]
    assert dropped > 0
    assert len(written) + dropped == 100


@pytest.mark.slow
def test_what_a_gateway_says_before_it_serves_is_in_the_log_as_well(run: Path, launch: Launch, tmp_path: Path) -> None:
    process = launch("serve", run, "--challenger", run, "--port", 0, "--audit", tmp_path / "audit.sqlite")
    process.wait_ready()
    lines = [json.loads(line) for line in process.whole_log().splitlines()]
    (said,) = (line for line in lines if line["message"] == "the challenger is not used")
    assert (said["level"], said["reason"]) == ("warning", "it is the served artifact")


def test_the_loggers_are_as_before_after_a_gateway() -> None:
    names = ("feddrm.serve", "uvicorn.error", "opentelemetry")

    def state() -> list[object]:
        return [(log.handlers, log.propagate, log.level) for log in map(logging.getLogger, names)]

    before = state()
    with logs.json_logging("debug"):
        assert state() != before
    assert state() == before
