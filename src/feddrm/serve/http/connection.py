"""One HTTP connection: uvicorn's, with timeouts for idle connections, slow headers and unread responses.

The application limits the body of a request and the work on it. This module limits the rest, so that no caller can
hold a connection without doing anything. docs/decisions/0005-limits-on-connections.md says why inner parts of
uvicorn are used.
"""

from __future__ import annotations

import logging
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from feddrm.serve.settings import HttpSettings

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

log = logging.getLogger("feddrm.serve")
MAX_HEADER_BYTES = 2**16  # of a request's first line and headers
TLS_HELLO = b"\x16\x03"  # how a TLS connection begins


class HeadersTooLong(Exception):
    """A request has more than ``MAX_HEADER_BYTES`` of headers."""


class LimitedConnection(HttpToolsProtocol):
    """A connection that keeps to ``limits``."""

    limits: HttpSettings

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0  # of this request's first line and headers
        self._unparsed_bytes = 0  # since the parser's last callback: it buffers a line until its end
        self._latest = b""  # the first bytes of what arrived last
        self._between_requests = True  # the last request has arrived completely, nothing of the next one
        self._running: RequestResponseCycle | None = None
        self._request_timer: TimerHandle | None = None
        self._reading_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._reject(503, "too many connections: try again in a while")
        else:
            self._start_idle_timer()  # uvicorn starts it only after the first response

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the request that arrived last, which may still wait behind the one that is being answered.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._request_timer, self._reading_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        self._latest = data[:2]
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed_bytes > MAX_HEADER_BYTES:
            self._reject_headers()
            return
        answering = not getattr(self.cycle, "response_complete", True)  # before the first request there is no cycle
        if answering or self._between_requests:
            self._stop_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.limits.body_seconds, self._reject_slow_request)
        if self._between_requests and not answering:  # the rest of a body arrived after the response
            self._start_idle_timer()

    def on_message_begin(self) -> None:
        self._header_bytes, self._between_requests = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between_requests = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_reading_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_reading_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading_timer is not None and not self.transport.is_closing():
            self._reading_timer.cancel()
            self._reading_timer = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_reading_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed; uvicorn also calls this after :class:`HeadersTooLong`."""
        if self._header_bytes > MAX_HEADER_BYTES:
            self._reject_headers()
        elif self._latest == TLS_HELLO:
            log.warning("a caller speaks TLS to this port, which takes http only: it must use http://")
            self._reject(400, "this port speaks http, not TLS: use http://")
        else:
            self._reject(400, f"{msg.rstrip('.')}: check its method, path and headers")

    def _count_header_bytes(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise HeadersTooLong

    def _start_idle_timer(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _start_reading_timer(self) -> None:
        """Abort the connection if the caller does not read its response: a closed transport still waits for that."""
        if self._reading_timer is None:
            self._reading_timer = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def _reject_slow_request(self) -> None:
        self._reject(408, f"the request took longer than {self.limits.body_seconds:g} s: send it at once")

    def _reject_headers(self) -> None:
        self._reject(431, f"headers of more than {MAX_HEADER_BYTES} bytes: send less")

    def _reject(self, status: int, text: str) -> None:
        """Answer with the usual error body, with an empty id because no request exists yet, and close."""
        if self.transport.is_closing():
            return
        content = orjson.dumps({"error": text, "request_id": ""})
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + content)
        self.transport.close()
        self._start_reading_timer()


def connection_class(settings: HttpSettings) -> type[LimitedConnection]:
    """The class of connections with these settings: uvicorn creates them and cannot pass arguments of ours."""
    return type("ConfiguredConnection", (LimitedConnection,), {"limits": settings})
