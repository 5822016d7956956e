"""One connection: uvicorn's own, with limits on what it leaves open (headers, idleness, answers nobody reads).

Bodies and the work on a request are the application's to limit. Here is the rest, so that whenever no
request is worked on, or an answer is not read, a clock runs.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from feddrm.serve.settings import ServerSettings

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEAD_BYTES = 2**16  # of a request's first line and headers


class TooLong(Exception):
    """Headers of more bytes than are read."""


class Connection(HttpToolsProtocol):
    """A connection within ``limits``."""

    limits: ServerSettings

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head = 0  # bytes of this request's first line and headers
        self._silent = 0  # bytes since the parser last told of anything: it keeps a line until it has its end
        self._between = True  # of the request before all has come, and of the next nothing
        self._running: RequestResponseCycle | None = None
        self._late: TimerHandle | None = None
        self._unread: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "too many connections: try again in a while")
        else:
            self._wait_for_a_request()  # uvicorn's clock starts after the first answer

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the request that came last, which may still wait behind the one that is worked on.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for clock in (self._late, self._unread):
            if clock is not None:
                clock.cancel()

    def data_received(self, data: bytes) -> None:
        self._silent += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._silent > HEAD_BYTES:
            self._refuse_headers()
            return
        working = not getattr(self.cycle, "response_complete", True)  # before the first request there is none
        if working or self._between:
            self._in_time()
        elif self._late is None:
            self._late = self.loop.call_later(self.limits.body_seconds, self._too_late)
        if self._between and not working:  # the rest of a body whose request has its answer
            self._wait_for_a_request()

    def on_message_begin(self) -> None:
        self._head, self._between = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None and not self.transport.is_closing():
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._limit_reading()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser fails, also by what is raised above."""
        if self._head > HEAD_BYTES:
            self._refuse_headers()
        else:
            self._refuse(400, msg)

    def _count(self, size: int) -> None:
        self._silent = 0
        self._head += size
        if self._head > HEAD_BYTES:
            raise TooLong

    def _wait_for_a_request(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._refuse(408, f"the request took longer than {self.limits.body_seconds:g} s: send it at once")

    def _refuse_headers(self) -> None:
        self._refuse(431, f"headers of more than {HEAD_BYTES} bytes: send less")

    def _refuse(self, status: int, text: str) -> None:
        """The one form of error, though there is no request yet that could have an id; then the end."""
        if self.transport.is_closing():
            return
        content = orjson.dumps({"error": text, "request_id": ""})
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + content)
        self.transport.close()
        self._limit_reading()

    def _limit_reading(self) -> None:
        """A transport that is closed still waits for its last bytes to be read."""
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.send_seconds, self.transport.abort)


def connection(settings: ServerSettings) -> type[Connection]:
    """The kind of connection for these settings: uvicorn makes them itself, and hands it none of ours."""
    return type("LimitedConnection", (Connection,), {"limits": settings})
