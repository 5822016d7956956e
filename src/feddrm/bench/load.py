"""Callers for a benchmark: connections that ask, wait for the whole answer and ask again.

Requests are made beforehand and answers not looked into, so that the core is left to the server.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feddrm.errors import FeddrmError


def post(port: int, path: str, kind: str, body: bytes) -> bytes:
    """A request, ready to be sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def one_answer(port: int, request: bytes) -> bytes:
    """The bytes of one answer, head and all."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        found = b""
        while b"\r\n\r\n" not in found:
            found += connection.recv(65536)
        head, _, body = found.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, bodies: Sequence[bytes], first: int, until: Callable[[], bool], done: asyncio.Future[None]
    ) -> None:
        self.bodies, self.place, self.until, self.done = bodies, first, until, done
        self.latencies: list[float] = []
        self.buffer, self.missing, self.began = b"", 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.bodies[self.place % len(self.bodies)])
        self.place += 1

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
        else:
            self.buffer += data
            head, found, body = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(FeddrmError(f"the gateway answered {head[:40]!r}"))
                return
            at = head.lower().index(b"\r\ncontent-length: ") + 18
            self.missing = int(head[at:].partition(b"\r\n")[0]) - len(body)
            self.buffer = b""
        if self.missing == 0:
            self.latencies.append(time.perf_counter() - self.began)
            if self.until():
                self.transport.close()
                self.done.set_result(None)
            else:
                self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(FeddrmError(f"the gateway closed a connection ({exc})"))


async def ask_all(
    port: int, bodies: Sequence[bytes], callers: int, seconds: float, requests: int = 0
) -> dict[str, Any]:
    """Callers side by side for some seconds, or for a number of requests."""
    loop = asyncio.get_running_loop()
    made: list[Caller] = []
    left = requests - callers

    def until() -> bool:
        nonlocal left
        left -= 1
        return left < 0 if requests else time.perf_counter() - began >= seconds

    ends = [loop.create_future() for _ in range(callers)]
    for number, end in enumerate(ends):
        _, caller = await loop.create_connection(
            lambda number=number, end=end: Caller(bodies, 7 * number, until, end),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        made.append(caller)
    began = time.perf_counter()
    for caller in made:  # everybody is connected: they start together
        caller.ask()
    await asyncio.gather(*ends)
    took = time.perf_counter() - began
    latencies = np.array([latency for caller in made for latency in caller.latencies])
    return {
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / took, 1),
        "p50_ms": round(1e3 * float(np.percentile(latencies, 50)), 3),
        "p99_ms": round(1e3 * float(np.percentile(latencies, 99)), 3),
    }
