"""Traces of requests: the trace context is always passed on; spans are recorded only where a recorder asks for them.

The trace of the current request is a context variable, so that nothing between the socket and a span hands it over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from time import time_ns
from types import TracebackType
from typing import Any, Protocol, Self

from feddrm.serve.telemetry.trace_context import (
    TraceContext,
    new_span_id,
    new_trace_id,
    read_trace_context,
    write_traceparent,
)

log = logging.getLogger("feddrm.serve")
REQUEST_ID = "x-request-id"


class Span:
    """One timed step of a request. Within ``with`` it is timed; ``fail`` or an exception marks it as failed."""

    __slots__ = ("attributes", "end", "error", "name", "span_id", "start", "trace")

    def __init__(self, trace: RequestTrace, name: str, attributes: Mapping[str, Any], start: int = 0) -> None:
        self.trace, self.name, self.attributes = trace, name, attributes
        self.span_id, self.start, self.end, self.error = new_span_id(), start, 0, ""

    def __enter__(self) -> Self:
        self.start = time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end = time_ns()
        if kind is not None:
            self.error = kind.__name__
        if self.trace.spans is not None:
            self.trace.spans.append(self)

    def fail(self, reason: str) -> None:
        self.error = reason


class NoSpan:
    """A span of a request that is not recorded."""

    span_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def fail(self, reason: str) -> None:
        """Nothing: nobody records it."""


class RequestTrace:
    """A request's place in its trace: the caller's context, if there is one, and this request's own span id.

    ``spans`` are its finished steps; None if they are not recorded.
    """

    __slots__ = ("_span_id", "caller", "request_id", "sampled", "spans", "start", "token", "trace_id")

    def __init__(self, caller: TraceContext | None, request_id: str) -> None:
        self.caller, self.request_id = caller, request_id
        self.trace_id = new_trace_id() if caller is None else caller.trace_id
        self._span_id = ""
        self.sampled = caller is not None and caller.sampled
        self.spans: list[Span] | None = None
        self.start = 0
        self.token: Token[RequestTrace | None] | None = None

    @property
    def span_id(self) -> str:
        """Made when it is needed first: most requests that are not recorded ask nobody."""
        self._span_id = self._span_id or new_span_id()
        return self._span_id


class Recorder(Protocol):
    """Where recorded requests go."""

    def samples(self, trace: RequestTrace) -> bool:
        """Whether to record this request."""

    def record(self, trace: RequestTrace, request: Span) -> None:
        """Take the finished span of a request and its steps, without waiting."""

    def close(self) -> None:
        """Send what waits, then stop."""


_current: ContextVar[RequestTrace | None] = ContextVar("feddrm_trace", default=None)
_NO_SPAN = NoSpan()


class Tracer:
    """Begins and ends the traces of requests. Without a recorder it only passes the context on.

    ``notice`` is what the log says at the start.
    """

    def __init__(self, recorder: Recorder | None = None, notice: str = "") -> None:
        self.recorder, self.notice = recorder, notice

    def start(self) -> None:
        """Say in the log where traces are sent, or why not."""
        if self.notice:
            log.info(self.notice)

    def begin(self, headers: Iterable[tuple[bytes, bytes]], request_id: str, unrecorded: bool = False) -> RequestTrace:
        """The trace of a request with these headers (names in lower case); it is the current one until its end."""
        parents, states = [], []
        for name, value in headers:
            if name == b"traceparent":
                parents.append(value)
            elif name == b"tracestate":
                states.append(value)
        trace = RequestTrace(read_trace_context(parents, states) if parents else None, request_id)
        if self.recorder is not None:
            trace.sampled = not unrecorded and self.recorder.samples(trace)
            if trace.sampled:
                trace.spans, trace.start = [], time_ns()
        trace.token = _current.set(trace)
        return trace

    def end(self, trace: RequestTrace, name: str, attributes: Mapping[str, Any], error: str = "") -> None:
        """Hand a recorded request over. ``name`` is its path, without anything that the caller chose."""
        if trace.token is not None:
            _current.reset(trace.token)
        if self.recorder is not None and trace.spans is not None:
            request = Span(trace, name, attributes, trace.start)
            request.span_id, request.end, request.error = trace.span_id, time_ns(), error
            self.recorder.record(trace, request)

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()


def span(name: str, **attributes: Any) -> Span | NoSpan:
    """A step of the current request, to be used with ``with``; nothing where it is not recorded."""
    trace = _current.get()
    return _NO_SPAN if trace is None or trace.spans is None else Span(trace, name, attributes)


def add_span(name: str, start: int, end: int, **attributes: Any) -> None:
    """Add a step of the current request that was timed elsewhere, in nanoseconds since 1970: in a batch, say."""
    trace = _current.get()
    if trace is not None and trace.spans is not None:
        step = Span(trace, name, attributes, start)
        step.end = end
        trace.spans.append(step)


def trace_id() -> str:
    """The trace id of the current request; '' outside of requests."""
    trace = _current.get()
    return "" if trace is None else trace.trace_id


def outgoing_headers(step: Span | NoSpan) -> dict[str, str]:
    """The headers of a request to another service: trace context, with this step as the parent, and request id."""
    trace = _current.get()
    if trace is None:
        return {}
    parent = write_traceparent(trace.trace_id, step.span_id or trace.span_id, trace.sampled)
    headers = {REQUEST_ID: trace.request_id, "traceparent": parent}
    if trace.caller is not None and trace.caller.tracestate:
        headers["tracestate"] = trace.caller.tracestate
    return headers
