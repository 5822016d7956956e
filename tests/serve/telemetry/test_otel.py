"""Spans as OpenTelemetry has them: in this process, and through real processes to a receiver of OTLP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'feddrm[otel]' to run this")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from feddrm.serve.telemetry.otel import OtelRecorder
from feddrm.serve.telemetry.trace_context import TraceContext
from feddrm.serve.telemetry.tracing import RequestTrace
from feddrm.serve.upstream.upstreams import Upstreams
from serving import QUICK, Launch, in_process, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "congo=1", "x-request-id": "mine"}
STEPS = ["decode", "features", "decision", "ask client", "ask client"]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where all spans of gateways and predictors in this process go."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(
        "feddrm.serve.telemetry.otel.open_recorder",
        lambda _, service, rate, on_count: OtelRecorder(SimpleSpanProcessor(exporter), service, rate, on_count),
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    return exporter


def hex_id(number: int, digits: int = 16) -> str:
    return f"{number:0{digits}x}"


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return hex_id(span.context.trace_id, 32), hex_id(span.context.span_id)


def test_every_step_is_a_child_of_the_request_and_the_predictor_of_the_step_that_asks_it(
    run: Path, images: torch.Tensor, tmp_path: Path, memory: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> httpx.Response:
        async with in_process(run, tmp_path, monkeypatch) as gateway:
            memory.clear()
            body = {"inputs": images[:2].tolist(), "consult": 2, "abstain": "answer", "without": ["fax"], "max_away": 1}
            return await gateway.post("/v1/predict", json=body, headers=CALLER)

    assert asyncio.run(go()).status_code == 200
    spans: list[Any] = [span for span in memory.get_finished_spans() if "health" not in span.name]
    by_service: dict[str, list[Any]] = {}
    for span in spans:
        by_service.setdefault(span.resource.attributes["service.name"], []).append(span)
        assert ids(span)[0] == TRACE
        assert span.context.trace_state.to_header() == "congo=1"
    assert sorted(by_service) == ["feddrm-client-flatbed", "feddrm-client-negative", "feddrm-gateway"]
    request, *steps = by_service["feddrm-gateway"]
    assert (request.name, request.kind, hex_id(request.parent.span_id)) == ("POST /v1/predict", SpanKind.SERVER, PARENT)
    assert dict(request.attributes) == {
        "http.request.method": "POST", "http.route": "/v1/predict", "http.response.status_code": 200,
        "feddrm.request_id": "mine",
    }  # fmt: skip
    assert [step.name for step in steps] == STEPS
    for step in steps:
        assert hex_id(step.parent.span_id) == ids(request)[1]
        assert request.start_time <= step.start_time <= step.end_time <= request.end_time
    for asked in steps[-2:]:
        name = asked.attributes["feddrm.client"]
        served, *inner = by_service[f"feddrm-client-{name}"]
        assert (asked.kind, served.kind) == (SpanKind.CLIENT, SpanKind.SERVER)
        assert hex_id(served.parent.span_id) == ids(asked)[1]
        assert [(step.name, hex_id(step.parent.span_id)) for step in inner] == [
            ("decode", ids(served)[1]),
            ("model", ids(served)[1]),
        ]


def test_failures_are_marked_and_a_caller_that_does_not_sample_is_respected(
    run: Path, tmp_path: Path, memory: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> list[int]:
        async with in_process(run, tmp_path, monkeypatch) as gateway:
            memory.clear()
            unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            body = {"features": [[0.0] * 16]}
            codes = [(await gateway.post("/v1/predict", json=body, headers=unsampled)).status_code]
            assert memory.get_finished_spans() == ()
            codes.append((await gateway.post("/v1/route", json={"features": "x"}, headers=CALLER)).status_code)
            monkeypatch.setattr(Upstreams, "away", lambda _, names, *__: dict.fromkeys(range(len(names)), "unhealthy"))
            codes.append((await gateway.post("/v1/predict", json=body, headers=CALLER)).status_code)
            return codes

    assert asyncio.run(go()) == [200, 422, 503]
    found = [(span.name, span.status.status_code, span.status.description) for span in memory.get_finished_spans()]
    assert found == [
        ("POST /v1/route", StatusCode.UNSET, None),
        ("decode", StatusCode.ERROR, "FeddrmError"),
        ("POST /v1/predict", StatusCode.ERROR, "status 503"),
        ("decode", StatusCode.UNSET, None),
        ("decision", StatusCode.UNSET, None),
    ]


def test_at_most_so_many_requests_a_second_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, counts = [100.0], []
    monkeypatch.setattr("feddrm.serve.telemetry.otel.time.monotonic", lambda: now[0])
    recorder = OtelRecorder(SimpleSpanProcessor(InMemorySpanExporter()), "gateway", 3.0, counts.append)
    new = RequestTrace(None, "id")
    assert [recorder.samples(new) for _ in range(5)] == [True] * 3 + [False] * 2
    assert counts == ["recorded"] * 3 + ["over the rate"] * 2
    now[0] += 0.5
    assert [recorder.samples(new) for _ in range(2)] == [True, False]
    unsampled = RequestTrace(TraceContext(TRACE, PARENT, False), "id")
    now[0] += 60
    assert [recorder.samples(unsampled) for _ in range(9)] == [False] * 9  # these take nothing from the rate
    assert [recorder.samples(new) for _ in range(4)] == [True] * 3 + [False]


def test_the_standard_sampler_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ward-7")
    recorder = OtelRecorder(SimpleSpanProcessor(InMemorySpanExporter()), "gateway")
    assert not recorder.samples(RequestTrace(TraceContext(TRACE, PARENT, True), "id"))
    assert recorder.resource.attributes["service.name"] == "ward-7"


class Receiver:
    """An OTLP/HTTP receiver on this machine: keeps the spans that it decodes. ``delay`` makes it slow."""

    def __init__(self, delay: float = 0.0) -> None:
        self.spans: list[tuple[str, Any]] = []  # service and span
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(delay)
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = [a.value.string_value for a in part.resource.attributes if a.key == "service.name"]
                    outer.spans += [(names[0], span) for scope in part.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.mark.slow
def test_spans_of_real_processes_arrive_at_a_receiver(
    run: Path, launch: Launch, tmp_path: Path, receiver: Receiver
) -> None:
    # The predictor takes the endpoint from the standard variable, the gateway from its option.
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    client = launch("serve-client", run / "clients" / "fax", "--port", 0, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
                    **quick)  # fmt: skip
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump({"fax": {"url": client.wait_ready()}}))
    gateway = launch("serve", run, "--clients", tmp_path / "clients.yaml", "--audit", tmp_path / "a.sqlite",
                     "--port", 0, "--trace-endpoint", receiver.url, **QUICK, **quick)  # fmt: skip
    with httpx.Client(base_url=gateway.wait_ready(), timeout=20) as http:
        until(lambda: bool(http.get("/v1/clients").json()["clients"][0]["healthy"]))
        body = {"inputs": [[[[7] * 8] * 8]], "max_away": 1, "abstain": "answer"}
        assert http.post("/v1/predict", json=body, headers=CALLER).status_code == 200
        assert 'feddrm_traces_total{result="recorded"}' in http.get("/metrics").text
    ours: dict[str, Any] = {}

    def arrived() -> bool:
        for service, span in list(receiver.spans):
            if span.trace_id.hex() == TRACE:
                ours[f"{service}: {span.name}"] = span
        return len(ours) == 8

    until(arrived)
    gateway_spans = {name.partition(": ")[2]: span for name, span in ours.items() if name.startswith("feddrm-gateway")}
    client_spans = {name.partition(": ")[2]: span for name, span in ours.items() if name.startswith("feddrm-client")}
    assert set(gateway_spans) == {"POST /v1/predict", *STEPS}
    assert set(client_spans) == {"POST /v2/models/{model}/infer", "decode", "model"}
    served = client_spans["POST /v2/models/{model}/infer"]
    assert gateway_spans["POST /v1/predict"].parent_span_id.hex() == PARENT
    assert served.parent_span_id == gateway_spans["ask client"].span_id
    assert client_spans["model"].parent_span_id == served.span_id
    assert f'"trace_id":"{TRACE}"' in gateway.whole_log()
    assert '"traces are sent to 127.0.0.1"' in client.whole_log()


@pytest.mark.slow
def test_a_collector_that_is_down_or_slow_delays_and_breaks_nothing(run: Path, launch: Launch, tmp_path: Path) -> None:
    slow = Receiver(delay=30)
    variables = {
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_BSP_MAX_QUEUE_SIZE": "16",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
    }
    for endpoint in ("http://127.0.0.1:9", slow.url):
        gateway = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite", "--trace-rate", 0,
                         "--trace-endpoint", endpoint, **variables)  # fmt: skip
        with httpx.Client(base_url=gateway.wait_ready(), timeout=10) as http:  # less than the receiver's delay
            for _ in range(60):
                assert http.post("/v1/route", json={"features": [[0.0] * 16]}, headers=CALLER).status_code == 200
        log = gateway.whole_log()  # it ends in time, although spans wait
        assert "Traceback" not in log
        assert '"message":"stopped"' in log
    slow.server.shutdown()
    slow.server.server_close()
