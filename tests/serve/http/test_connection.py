"""Limits on connections: long headers, half a request, idle connections, responses that are not read."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from feddrm.serve.http.connection import MAX_HEADER_BYTES, connection_class
from feddrm.serve.http.middleware import RequestMiddleware
from feddrm.serve.settings import HttpSettings
from serving import NAMES, Launch

pytestmark = pytest.mark.slow

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = b"POST /big HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
SIZE = 8 * 2**20


class Server:
    """A server in this process, with an application that answers at once and does not read bodies."""

    def __init__(self, keep_alive: int, tls: dict[str, Path], **limits: Any) -> None:
        settings = HttpSettings(host="127.0.0.1", port=0, **limits)
        self.middleware = RequestMiddleware(self._answer, settings)
        config = uvicorn.Config(self.middleware, port=0, log_config=None, lifespan="off", ws="none",
                                timeout_keep_alive=keep_alive, http=connection_class(settings), **tls)  # fmt: skip
        self.server = uvicorn.Server(config)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self.sock.getsockname()
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]})
        self.thread.start()

    @staticmethod
    async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(b"x" * SIZE if scope["path"] == "/big" else b"fine")(scope, receive, send)

    def connect(self, buffer: int | None = None) -> socket.socket:
        made = socket.socket()
        if buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.settimeout(20)
        made.connect(self.place)
        return made


@contextmanager
def server(keep_alive: int = 75, tls: dict[str, Path] | None = None, **limits: Any) -> Iterator[Server]:
    made = Server(keep_alive, tls or {}, **limits)
    try:
        yield made
    finally:
        made.server.should_exit = made.server.force_exit = True
        made.thread.join()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def read_response(held: socket.socket) -> bytes:
    """One response; the connection stays open."""
    found = b""
    while not found.endswith(b"fine"):
        part = held.recv(2**16)
        assert part, found
        found += part
    return found


def read_to_end(held: socket.socket) -> bytes:
    """All bytes until the connection ends; a connection that stays open is an error."""
    found = b""
    with suppress(ConnectionError):
        while part := held.recv(2**16):
            found += part
    return found


def many_headers() -> Iterator[bytes]:
    yield ASK[:-2]
    for number in range(100):
        yield b"X-%d: " % number + b"a" * 60_000 + b"\r\n"


def long_header() -> Iterator[bytes]:
    yield ASK[:-2] + b"X: "
    yield from [b"a" * 60_000] * 100


def long_path() -> Iterator[bytes]:
    yield b"GET /"
    yield from [b"a" * 60_000] * 100


def long_trailer() -> Iterator[bytes]:
    yield ASK[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "
    yield from [b"a" * 60_000] * 100


@pytest.mark.parametrize("pieces", [many_headers, long_header, long_path, long_trailer])
def test_endless_headers_end_the_connection(pieces: Callable[[], Iterator[bytes]]) -> None:
    with server() as made, made.connect() as held:
        with suppress(ConnectionError):
            for piece in pieces():
                held.sendall(piece)
        read_to_end(held)
        with made.connect() as other:
            other.sendall(ASK)
            assert read_response(other).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_endless_headers_end_a_tls_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS ends by a handshake. Data that arrives before it is not parsed, and a missing handshake is not awaited."""
    files = {"ssl_certfile": tmp_path / "cert.pem", "ssl_keyfile": tmp_path / "key.pem"}
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -out {} -keyout {}"
    subprocess.run(words.format(*files.values()).split(), check=True, capture_output=True)
    parsed: list[int] = []
    parse = HttpToolsProtocol.data_received
    monkeypatch.setattr(
        HttpToolsProtocol, "data_received", lambda own, data: parsed.append(len(data)) or parse(own, data)
    )
    context = ssl.create_default_context(cafile=str(files["ssl_certfile"]))
    with server(tls=files, send_seconds=0.5) as made:
        with context.wrap_socket(made.connect(), server_hostname="localhost") as held, suppress(OSError):
            for piece in long_header():
                held.sendall(piece)
        wait_until(lambda: not made.server.server_state.connections)
    assert MAX_HEADER_BYTES < sum(parsed) < 2**20


def test_headers_above_the_limit_get_a_431_and_shorter_ones_are_read() -> None:
    with server() as made:
        with made.connect() as held:
            held.sendall(ASK[:-2] + b"X: " + b"a" * (MAX_HEADER_BYTES - 100) + b"\r\n\r\n")
            assert read_response(held).startswith(b"HTTP/1.1 200")
            held.sendall(ASK)  # the count starts again with every request
            assert read_response(held).startswith(b"HTTP/1.1 200")
        with made.connect() as held:
            held.sendall(ASK[:-2] + b"X: " + b"a" * (MAX_HEADER_BYTES - 100) + b"\r\n")
            held.sendall(b"Y: " + b"b" * 200 + b"\r\n\r\n")
            found = read_to_end(held)
        assert found.startswith(b"HTTP/1.1 431 ")
        assert b"headers of more than 65536 bytes" in found


def test_half_a_request_gets_a_408() -> None:
    with server(body_seconds=0.5) as made:
        for first in (b"", ASK):  # a new connection, and one that was used before
            with made.connect() as held:
                if first:
                    held.sendall(first)
                    read_response(held)
                held.sendall(ASK[:-10])
                assert read_to_end(held).startswith(b"HTTP/1.1 408 ")
        with made.connect() as held:  # a body that arrives after the response
            held.sendall(ASK[:-2] + b"Content-Length: 10\r\n\r\n")
            read_response(held)
            held.sendall(b"half")
            assert read_to_end(held).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_arrives_byte_by_byte_ends_in_time() -> None:
    with server(body_seconds=0.5) as made, made.connect() as held, suppress(ConnectionError):
        held.sendall(ASK[:-2] + b"X: ")

        def ended() -> bool:
            held.sendall(b"a")
            return not made.server.server_state.connections

        wait_until(lambda: bool(made.server.server_state.connections))
        wait_until(ended)


def test_idle_connections_outlive_the_limit_of_a_request() -> None:
    with server(body_seconds=0.2) as made, made.connect() as held:
        time.sleep(1)
        for body in (b"", b"0123456789"):
            held.sendall(ASK[:-2] + b"Content-Length: %d\r\n\r\n" % len(body))
            read_response(held)
            held.sendall(body)
            time.sleep(1)
        held.sendall(ASK)
        assert read_response(held).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("used", [False, True])
def test_idle_connections_end_after_the_keep_alive_time(used: bool) -> None:
    with server(keep_alive=1) as made, made.connect() as held:
        if used:
            held.sendall(ASK)
            read_response(held)
            held.sendall(b"\r\n")  # belongs to no request
        assert read_to_end(held) == b""


def test_a_response_that_is_not_read_ends_the_connection() -> None:
    with server(send_seconds=0.5) as made, made.connect(4096) as held:
        held.sendall(BIG * 3)
        wait_until(lambda: made.middleware.in_flight == 1)  # the second request waits until the first response is read
        wait_until(lambda: made.middleware.in_flight == 0)
        wait_until(lambda: not made.server.server_state.connections)
        assert len(read_to_end(held)) < SIZE


def test_a_response_that_is_read_in_time_keeps_the_connection() -> None:
    with server(send_seconds=3) as made, made.connect() as held:
        held.sendall(BIG)
        received = 0
        while received < SIZE:
            received += len(held.recv(2**20))
        time.sleep(3.5)
        held.sendall(ASK)
        assert b"HTTP/1.1 200" in read_response(held)


def test_connections_above_the_limit_get_a_503() -> None:
    with server(max_connections=2) as made, ExitStack() as stack:
        held = [stack.enter_context(made.connect()) for _ in range(2)]
        for one in held:
            one.sendall(ASK)
            read_response(one)
        with made.connect() as third:
            assert read_to_end(third).startswith(b"HTTP/1.1 503 ")
        held[0].close()
        wait_until(lambda: len(made.server.server_state.connections) == 1)
        with made.connect() as again:
            again.sendall(ASK)
            assert read_response(again).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("service", ["gateway", "predictor"])
def test_gateway_and_predictor_have_these_limits(run: Path, tmp_path: Path, launch: Launch, service: str) -> None:
    words = ["serve", run, "--audit", tmp_path / "a.sqlite"]
    if service == "predictor":
        words = ["serve-client", run / "clients" / NAMES[0]]
    url = launch(*words, "--port", 0, FEDDRM_SERVE_BODY_SECONDS="1").wait_ready()
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(place, timeout=20) as held:
        held.sendall(ASK[:-10])
        assert read_to_end(held).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(place, timeout=20) as held:
        held.sendall(ASK[:-2] + b"X: " + b"a" * (MAX_HEADER_BYTES - 100) + b"\r\n")
        held.sendall(b"Y: " + b"b" * 200 + b"\r\n\r\n")
        assert read_to_end(held).startswith(b"HTTP/1.1 431 ")


def test_callers_who_read_no_responses_do_not_block_others(run: Path, tmp_path: Path, launch: Launch) -> None:
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite",
                     FEDDRM_SERVE_MAX_IN_FLIGHT="3", FEDDRM_SERVE_SEND_SECONDS="2")  # fmt: skip
    url = process.wait_ready()
    body = bytes(64 * 1024)
    head = f"Host: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    request = b"POST /v1/route?kind=inputs&datatype=uint8 HTTP/1.1\r\n" + head.encode() + body
    with ExitStack() as stack:
        for _ in range(3):
            greedy = stack.enter_context(socket.socket())
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            greedy.settimeout(0.3)
            with suppress(TimeoutError):  # the gateway stops reading while it cannot answer
                greedy.sendall(request * 20)
        wait_until(lambda: "feddrm_in_flight 3.0" in httpx.get(f"{url}/metrics").text)
        wait_until(lambda: httpx.post(f"{url}/v1/route", json={"features": [[0.1] * 16]}).status_code == 200)
    assert "Traceback" not in process.whole_log()
