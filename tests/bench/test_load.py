from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from feddrm.bench.load import one_response, post_request, run_load
from feddrm.errors import FeddrmError


class Handler(BaseHTTPRequestHandler):
    """Answers every request with ``status`` and counts the bodies."""

    protocol_version = "HTTP/1.1"
    status = 200
    bodies: ClassVar[Counter[bytes]] = Counter()

    def do_POST(self) -> None:
        Handler.bodies[self.rfile.read(int(self.headers["Content-Length"]))] += 1
        self.send_response(Handler.status)
        self.send_header("Content-Length", "5")
        self.end_headers()
        for part in (b"12", b"345"):  # a response may arrive in parts
            self.wfile.write(part)
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(Handler, "bodies", Counter())
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def requests(port: int) -> list[bytes]:
    return [post_request(port, "/", "text/plain", body) for body in (b"one", b"three")]


def test_the_wanted_number_of_requests_is_sent(port: int) -> None:
    figures = asyncio.run(run_load(port, requests(port), 3, 0, total=30))
    assert figures["requests"] == Handler.bodies.total() == 30
    assert set(Handler.bodies) == {b"one", b"three"}
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


def test_requests_are_sent_for_the_wanted_time(port: int) -> None:
    figures = asyncio.run(run_load(port, requests(port), 2, 0.2))
    assert figures["requests"] == Handler.bodies.total() >= 2


def test_an_error_of_the_server_ends_the_benchmark(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "status", 503)
    with pytest.raises(FeddrmError, match="503"):
        asyncio.run(run_load(port, requests(port), 1, 0, total=2))


def test_one_response_has_its_headers(port: int) -> None:
    response = one_response(port, requests(port)[0])
    assert response.startswith(b"HTTP/1.1 200")
    assert response.endswith(b"\r\n\r\n12345")
