from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from feddrm.serve.http.http_session import CALL_ERRORS, HttpSession
from refusal import refused

CALLERS = 4


class Server(ThreadingHTTPServer):
    """Notes every request and the port from which it came."""

    daemon_threads = True
    together = threading.Barrier(CALLERS)

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None, int]] = []
        self.closed = threading.Event()
        super().__init__(("127.0.0.1", 0), Answer)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed.set()


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        if "together" in self.path:
            self.server.together.wait(20)
        sender = self.client_address[1]
        self.server.requests.append((self.path, self.headers["X-Key"], self.headers["Content-Type"], sender))
        self.send_response(503 if "busy" in self.path else 200)
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.close_connection = "leave" in self.path  # without saying so

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def session(server: Server) -> Iterator[HttpSession]:
    session = HttpSession(f"http://127.0.0.1:{server.server_port}/lab/", {"X-Key": "k"}, 20.0, None)
    yield session
    session.close()


def test_a_request_carries_headers_options_and_the_path_of_the_address(server: Server, session: HttpSession) -> None:
    reply = session.call("POST", "/v1/busy", b"x", {"without": "a,b c", "rule": None}, "image/png")
    session.call("GET", "/v1/clients")
    assert (reply.status, reply.headers.get("retry-after"), reply.body) == (503, "7", b"{}")
    assert [request[:3] for request in server.requests] == [
        ("/lab/v1/busy?without=a%2Cb+c", "k", "image/png"),
        ("/lab/v1/clients", "k", None),
    ]


def test_a_connection_is_used_again_until_the_server_closes_it(server: Server, session: HttpSession) -> None:
    for path in ("/a", "/b", "/leave"):
        session.call("POST", path, b"{}")
    assert server.closed.wait(20)
    session.call("POST", "/c", b"{}")
    senders = [sender for *_, sender in server.requests]
    assert senders[0] == senders[1] == senders[2] != senders[3]


def test_threads_call_at_the_same_time(server: Server, session: HttpSession) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        replies = list(pool.map(lambda _: session.call("GET", "/together"), range(CALLERS)))
    assert [reply.status for reply in replies] == [200] * CALLERS
    assert len({sender for *_, sender in server.requests}) == CALLERS


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:port", "http://[::1", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with refused("is no address", "http://127.0.0.1:8080"):
        HttpSession(url, {}, 1.0, None)


@pytest.mark.parametrize(
    ("url", "headers"), [("http://127.0.0.1:9", {}), ("http://a..b", {}), ("http://127.0.0.1:9", {"X-Key": "a\nb"})]
)
def test_what_cannot_be_sent_is_an_error_that_callers_expect(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(CALL_ERRORS):
        HttpSession(url, headers, 1.0, None).call("GET", "/")
