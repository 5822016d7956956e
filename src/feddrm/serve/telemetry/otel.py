"""Recorded requests as OpenTelemetry spans, sent by OTLP over HTTP (extra: otel).

The SDK's own spans take 25 us each to begin and end. Here a step of a request is timed for 1 us, and the SDK's form is
made of it when the request is over. The SDK still samples, batches and sends, by the OTEL_* variables. Encoding takes
most of the time (some 40 us per span, measured on an Intel Xeon core), so ``rate`` limits the requests that are
recorded per second.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from feddrm._version import __version__
from feddrm.errors import FeddrmError
from feddrm.serve.telemetry.tracing import RequestTrace, Span

CLOSE_SECONDS = 2.0  # to send the last spans: a collector that is down must not delay the end
SCOPE = InstrumentationScope("feddrm", __version__)
TRACES_PATH = "/v1/traces"
UNSET = Status(StatusCode.UNSET)


class OtelRecorder:
    """Samples requests and hands their spans to a processor of the SDK, which sends them in a thread of its own.

    At most ``rate`` requests per second are recorded (0: no limit); ``on_count`` is told which were and were not.
    """

    def __init__(
        self,
        processor: SpanProcessor,
        service: str,
        rate: float = 0.0,
        on_count: Callable[[str], None] | None = None,
    ) -> None:
        self.processor, self.rate = processor, rate
        self.resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service})
        self.sampler = TracerProvider(resource=self.resource, shutdown_on_exit=False).sampler
        self._count = on_count or (lambda _: None)
        self._tokens, self._filled = max(1.0, rate), time.monotonic()

    def samples(self, trace: RequestTrace) -> bool:
        if self.rate and not self._has_token():
            self._count("over the rate")
            return False
        parent = None
        if trace.caller is not None:
            parent = set_span_in_context(NonRecordingSpan(_caller_context(trace)))
        if (
            self.sampler.should_sample(parent, int(trace.trace_id, 16), "request").decision
            is not Decision.RECORD_AND_SAMPLE
        ):
            return False
        self._tokens -= 1
        self._count("recorded")
        return True

    def _has_token(self) -> bool:
        now = time.monotonic()
        self._tokens = min(max(1.0, self.rate), self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        return self._tokens >= 1

    def record(self, trace: RequestTrace, request: Span) -> None:
        own = self._send(request, None if trace.caller is None else _caller_context(trace), SpanKind.SERVER)
        for step in trace.spans or ():
            self._send(step, own, SpanKind.CLIENT if "feddrm.client" in step.attributes else SpanKind.INTERNAL)

    def _send(self, span: Span, parent: SpanContext | None, kind: SpanKind) -> SpanContext:
        context = SpanContext(
            int(span.trace.trace_id, 16), int(span.span_id, 16), False, TraceFlags(1), _state(span.trace)
        )
        self.processor.on_end(
            ReadableSpan(
                name=span.name,
                context=context,
                parent=parent,
                resource=self.resource,
                attributes=span.attributes,
                kind=kind,
                status=Status(StatusCode.ERROR, span.error) if span.error else UNSET,
                start_time=span.start,
                end_time=span.end,
                instrumentation_scope=SCOPE,
            )
        )
        return context

    def close(self) -> None:
        closing = threading.Thread(target=self.processor.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        exporter = getattr(self.processor, "span_exporter", None)
        if closing.is_alive() and exporter is not None:
            exporter.shutdown()  # ends its retries


def open_recorder(
    endpoint: str | None, service: str, rate: float, on_count: Callable[[str], None] | None
) -> OtelRecorder:
    """A recorder that sends to an OTLP endpoint such as http://127.0.0.1:4318; None: by the OTEL_* variables."""
    if endpoint is not None and not endpoint.endswith(TRACES_PATH):
        endpoint = endpoint.rstrip("/") + TRACES_PATH
    try:
        processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
    except (ValueError, OSError) as error:
        raise FeddrmError(f"cannot send traces ({error}): check --trace-endpoint and the OTEL_* variables") from error
    return OtelRecorder(processor, service, rate, on_count)


def _state(trace: RequestTrace) -> TraceState | None:
    text = "" if trace.caller is None else trace.caller.tracestate
    return TraceState.from_header([text]) if text else None


def _caller_context(trace: RequestTrace) -> SpanContext:
    caller = trace.caller
    assert caller is not None
    return SpanContext(
        int(caller.trace_id, 16), int(caller.parent_id, 16), True, TraceFlags(int(caller.sampled)), _state(trace)
    )
