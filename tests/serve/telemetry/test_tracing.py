from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from feddrm.serve.telemetry.tracing import RequestTrace, Span, Tracer, add_span, outgoing_headers, span, trace_id
from feddrm.serve.upstream.upstreams import Upstream
from serving import in_process

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "congo=1", "x-request-id": "mine"}
HEADERS = [(name.encode(), value.encode()) for name, value in CALLER.items()]


class Kept:
    """A recorder that keeps what it gets."""

    def __init__(self, sampled: bool = True) -> None:
        self.sampled, self.requests, self.closed = sampled, [], False
        self.requests: list[tuple[RequestTrace, Span]]

    def samples(self, trace: RequestTrace) -> bool:
        return self.sampled

    def record(self, trace: RequestTrace, request: Span) -> None:
        self.requests.append((trace, request))

    def close(self) -> None:
        self.closed = True


def test_without_a_recorder_the_context_is_passed_on_with_a_new_parent() -> None:
    tracer = Tracer()
    trace = tracer.begin(HEADERS, "mine")
    with span("decode") as step:
        headers = outgoing_headers(step)
    assert (trace_id(), trace.spans) == (TRACE, None)
    version, passed, parent, flags = headers["traceparent"].split("-")
    assert (version, passed, flags) == ("00", TRACE, "01")
    assert parent == trace.span_id != PARENT
    assert (headers["tracestate"], headers["x-request-id"]) == ("congo=1", "mine")
    tracer.end(trace, "POST /v1/route", {})
    assert trace_id() == ""
    assert outgoing_headers(step) == {}


@pytest.mark.parametrize("bad", ["", "00-0-0-01", f"00-{TRACE}-{PARENT}-01-more"])
def test_a_bad_context_is_replaced_and_its_tracestate_left_out(bad: str) -> None:
    trace = Tracer().begin([(b"traceparent", bad.encode()), (b"tracestate", b"congo=1")], "id")
    with span("x") as step:
        headers = outgoing_headers(step)
    assert len(trace.trace_id) == 32
    assert trace.trace_id != TRACE
    assert headers["traceparent"].endswith("-00")  # nobody records it
    assert "tracestate" not in headers
    Tracer().end(trace, "", {})


def test_recorded_steps_are_timed_and_named() -> None:
    recorder = Kept()
    tracer = Tracer(recorder)
    trace = tracer.begin(HEADERS, "mine")
    with span("decode"):
        pass
    add_span("features", 5, 7)
    with span("ask client", client="oslo") as asked:
        asked.fail("time-out")
        forwarded = outgoing_headers(asked)["traceparent"]
    with contextlib.suppress(ValueError), span("decode"):
        raise ValueError("secret")
    tracer.end(trace, "POST /v1/predict", {"status": 503}, "status 503")
    ((kept, request),) = recorder.requests
    assert kept is trace
    assert [(step.name, step.error) for step in kept.spans or ()] == [
        ("decode", ""), ("features", ""), ("ask client", "time-out"), ("decode", "ValueError")
    ]  # fmt: skip
    decode, features, ask, _ = kept.spans or ()
    assert forwarded == f"00-{TRACE}-{ask.span_id}-01"
    assert (features.start, features.end) == (5, 7)
    assert request.start <= decode.start <= decode.end <= request.end
    assert (request.span_id, request.error) == (trace.span_id, "status 503")
    tracer.close()
    assert recorder.closed


def test_a_request_that_is_not_sampled_is_neither_recorded_here_nor_asked_to_be_elsewhere() -> None:
    recorder = Kept(sampled=False)
    tracer = Tracer(recorder)
    trace = tracer.begin(HEADERS, "mine")
    with span("decode") as step:
        assert outgoing_headers(step)["traceparent"].endswith("-00")
    tracer.end(trace, "POST /v1/route", {})
    unrecorded = Tracer(Kept()).begin([], "health", unrecorded=True)
    assert unrecorded.spans is None
    Tracer().end(unrecorded, "", {})
    assert recorder.requests == []


def test_requests_at_the_same_time_have_traces_of_their_own() -> None:
    async def one(number: int) -> tuple[str, str]:
        tracer, own = Tracer(), f"{number:032x}"
        trace = tracer.begin([(b"traceparent", f"00-{own}-{PARENT}-00".encode())], "id")
        await asyncio.sleep(0.001 * (5 - number))
        found = trace_id()
        tracer.end(trace, "", {})
        return own, found

    async def all_of_them() -> list[tuple[str, str]]:
        return await asyncio.gather(*(one(number) for number in range(1, 5)))

    assert all(own == found for own, found in asyncio.run(all_of_them()))


def test_trace_and_request_id_reach_predictor_log_and_audit(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[dict[str, str]] = []
    send = Upstream.send

    async def noted(self: Upstream, method: str, *words: Any, **options: Any) -> tuple[int, bytes]:
        if method == "POST":
            sent.append(options["headers"])
        return await send(self, method, *words, **options)

    monkeypatch.setattr(Upstream, "send", noted)

    async def go() -> httpx.Response:
        async with in_process(run, tmp_path, monkeypatch) as gateway:
            body = {"features": [[0.0] * 16], "consult": 3, "abstain": "answer"}
            return await gateway.post("/v1/predict", json=body, headers=CALLER)

    with caplog.at_level(logging.INFO, "feddrm.serve"):
        assert asyncio.run(go()).status_code == 200
    assert len(sent) == 3
    for headers in sent:
        assert headers["traceparent"].startswith(f"00-{TRACE}-")
        assert not headers["traceparent"].startswith(f"00-{TRACE}-{PARENT}")
        assert (headers["tracestate"], headers["x-request-id"]) == ("congo=1", "mine")
    lines = [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
    ours = [line for line in lines if line["request_id"] == "mine"]
    assert [line["path"] for line in ours] == ["/v2/models/{model}/infer"] * 3 + ["/v1/predict"]
    assert {line["trace_id"] for line in ours} == {TRACE}
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.sqlite")) as database:
        assert set(database.execute("SELECT request_id, trace_id FROM decisions")) == {("mine", TRACE)}


@pytest.mark.slow
def test_a_gateway_that_sends_no_traces_imports_no_opentelemetry(run: Path, tmp_path: Path) -> None:
    import subprocess

    script = (
        "import sys; from pathlib import Path; from feddrm.serve.app import build_gateway; "
        "from feddrm.serve.settings import GatewaySettings; "
        f"build_gateway(Path({str(run)!r}), GatewaySettings(audit={str(tmp_path / 'a.sqlite')!r})); "
        "import json; print(json.dumps(sorted(m for m in sys.modules if m.startswith(('opentelemetry', 'jwt')))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
