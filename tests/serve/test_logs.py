from __future__ import annotations

import io
import json
import logging
import threading

import pytest

from feddrm.serve.telemetry import logs
from feddrm.serve.telemetry.logs import Lines


class Stuck(io.BytesIO):
    """A reader that does not read, for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, data: object) -> int:
        self.go.wait(10)
        return super().write(data)  # type: ignore[arg-type]


def read(stream: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_records_become_lines_with_their_trace() -> None:
    stream = io.BytesIO()
    handler = Lines(stream)
    try:
        raise ValueError("inside")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "it %s", ("failed",), info)
    record.fields = {"path": "/v1/route", "odd": object, "half": "\ud800"}
    handler.handle(record)
    handler.close()
    (line,) = read(stream)
    assert (line["level"], line["message"], line["path"]) == ("error", "it failed", "/v1/route")
    assert "ValueError: inside" in str(line["trace"])


def test_a_reader_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ROOM", 10)
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.01)
    stream = Stuck()
    handler = Lines(stream)
    for number in range(100):
        handler.put(0.0, "info", "request", {"number": number})
    stream.go.set()
    handler.close()
    lines = read(stream)
    written = [line["number"] for line in lines if line["message"] == "request"]
    dropped = sum(int(str(line["number"])) for line in lines if line["message"] == "log lines dropped")
    assert written == sorted(written, key=int)  # type: ignore[arg-type, call-overload]
    assert dropped > 0
    assert len(written) + dropped == 100
