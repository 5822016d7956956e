"""Load for a benchmark: connections that send a request, wait for the whole response and send the next one.

Requests are made in advance and responses are not parsed, so that the processor is left to the server.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feddrm.errors import FeddrmError


def post_request(port: int, path: str, content_type: str, body: bytes) -> bytes:
    """The bytes of a POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def one_response(port: int, request: bytes) -> bytes:
    """The bytes of the response to one request, with its headers."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body


class LoadConnection(asyncio.Protocol):
    """One connection. It sends ``requests`` in turn, from number ``first`` on, until ``is_over`` is true."""

    def __init__(
        self, requests: Sequence[bytes], first: int, is_over: Callable[[], bool], done: asyncio.Future[None]
    ) -> None:
        self.requests, self.next, self.is_over, self.done = requests, first, is_over, done
        self.latencies: list[float] = []
        self.head, self.missing_bytes, self.sent_at = b"", 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.requests[self.next % len(self.requests)])
        self.next += 1

    def data_received(self, data: bytes) -> None:
        if self.missing_bytes:
            self.missing_bytes -= len(data)
        else:
            self.head += data
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(FeddrmError(f"the gateway answered {head[:40]!r}"))
                self.transport.close()
                return
            length = head.lower().index(b"\r\ncontent-length: ") + 18
            self.missing_bytes = int(head[length:].partition(b"\r\n")[0]) - len(body)
            self.head = b""
        if self.missing_bytes == 0:
            self.latencies.append(time.perf_counter() - self.sent_at)
            if self.is_over():
                self.transport.close()
                self.done.set_result(None)
            else:
                self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(FeddrmError(f"the gateway closed a connection ({exc})"))


async def run_load(
    port: int, requests: Sequence[bytes], connections: int, seconds: float, total: int = 0
) -> dict[str, Any]:
    """Send requests over several connections at once, for some seconds or until ``total`` requests are answered."""
    loop = asyncio.get_running_loop()
    opened: list[LoadConnection] = []
    remaining = total - connections

    def is_over() -> bool:
        nonlocal remaining
        remaining -= 1
        return remaining < 0 if total else time.perf_counter() - started >= seconds

    ends = [loop.create_future() for _ in range(connections)]
    for number, end in enumerate(ends):
        _, connection = await loop.create_connection(
            lambda number=number, end=end: LoadConnection(requests, 7 * number, is_over, end),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        opened.append(connection)
    started = time.perf_counter()
    for connection in opened:  # all are connected before the first one sends
        connection.send()
    await asyncio.gather(*ends)
    elapsed = time.perf_counter() - started
    latencies = np.array([latency for connection in opened for latency in connection.latencies])
    return {
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / elapsed, 1),
        "p50_ms": round(1e3 * float(np.percentile(latencies, 50)), 3),
        "p99_ms": round(1e3 * float(np.percentile(latencies, 99)), 3),
    }
