"""Why a connection failed, in words, at both of its ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dates import days_from_now
from feddrm.io import connection_errors
from feddrm.io.connection_errors import (
    EARLY_AUTHORITY,
    FOREIGN,
    HANDSHAKE,
    NOT_TLS,
    OLD_AUTHORITY,
    SPEAKS_TLS,
    HandshakeLog,
    certificate_dates,
    explain,
    log_handshake,
)

httpx = pytest.importorskip("httpx")
certificates = pytest.importorskip("feddrm.deploy.provision.certificates")


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[int]:
    """The port of a server that answers every request with 400, as an HTTP server answers what it cannot read."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    ready, ports, stops = threading.Event(), list[int](), list[Callable[[], object]]()

    async def serve() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            ports.append(server.sockets[0].getsockname()[1])
            stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield ports[0]
    finally:
        stops[0]()
        thread.join(10)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start a TLS server with a certificate for these hosts; its authority is in ``ca.crt``."""
    with ExitStack() as stack:

        def start(*hosts: str) -> int:
            certificates.write_certificates(tmp_path / "authority", tmp_path, list(hosts))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
            context.sslobject_class = HandshakeLog
            return stack.enter_context(listening(context))

        connection_errors._last_logged.clear()
        yield start


def failure(url: str, ca: Path | None = None) -> str:
    """What the calling end says."""
    verify = True if ca is None else ssl.create_default_context(cafile=ca)
    with pytest.raises(httpx.HTTPError) as caught, httpx.Client(verify=verify, trust_env=False, timeout=5) as http:
        http.get(url)
    return explain(caught.value, url)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "feddrm.tls"]


def wait_for_log(caplog: pytest.LogCaptureFixture) -> list[str]:
    for _ in range(500):  # the server's thread may still be on its way
        if logged(caplog):
            break
        threading.Event().wait(0.01)
    return logged(caplog)


def test_a_certificate_of_another_authority_is_named_at_both_ends(
    serving: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    url = f"https://127.0.0.1:{serving('127.0.0.1')}"
    assert failure(url) == FOREIGN
    assert wait_for_log(caplog) == [HANDSHAKE["UNKNOWN_CA"]]


def test_a_certificate_for_another_host_is_named(serving: Callable[..., int], tmp_path: Path) -> None:
    port = serving("server.example")
    assert "for another address" in failure(f"https://127.0.0.1:{port}", tmp_path / "ca.crt")
    assert "for another host name" in failure(f"https://localhost:{port}", tmp_path / "ca.crt")


def test_an_expired_certificate_is_named_at_both_ends(
    serving: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.5)
    said = failure(f"https://127.0.0.1:{serving('127.0.0.1')}", tmp_path / "ca.crt")
    begin, end = certificate_dates((tmp_path / "tls.crt").read_text())
    assert said == (
        f"its certificate has expired (it is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}): renew it there, or set "
        "this machine's clock"
    )
    assert wait_for_log(caplog) == [HANDSHAKE["CERTIFICATE_EXPIRED"]]


def test_a_certificate_that_is_not_valid_yet_is_not_taken_for_one_of_another_host(
    serving: Callable[..., int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serving("127.0.0.1")
    with days_from_now(3):
        certificates.renew_certificate(tmp_path / "authority", tmp_path, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    context.sslobject_class = HandshakeLog
    with listening(context) as port:
        said = failure(f"https://127.0.0.1:{port}", tmp_path / "ca.crt")
    begin, _ = certificate_dates((tmp_path / "tls.crt").read_text())
    assert said.startswith(f"its certificate is not valid yet (it is valid from {begin:%Y-%m-%d}")
    assert said.endswith("compare the clocks of both ends")
    (text,) = wait_for_log(caplog)
    assert "not valid yet by the caller's clock" in text


@pytest.mark.parametrize(("days", "begins", "words"), [(-0.5, 0, OLD_AUTHORITY), (3650, 3, EARLY_AUTHORITY)])
def test_the_dates_of_the_authority_are_told_apart_from_the_servers(
    days: float, begins: float, words: str, serving: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the caller's own file that has to be renewed, not the server's."""
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", days)
    with days_from_now(begins):
        certificates.write_certificates(tmp_path / "authority", tmp_path, ["127.0.0.1"])
    certificates.renew_certificate(tmp_path / "authority", tmp_path, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with listening(context) as port:
        assert failure(f"https://127.0.0.1:{port}", tmp_path / "ca.crt") == words


def test_http_to_a_tls_port_is_named_at_both_ends(
    serving: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{serving('127.0.0.1')}"
    assert failure(url) == SPEAKS_TLS
    assert wait_for_log(caplog)[0] == HANDSHAKE["HTTP_REQUEST"]


def test_https_to_an_http_port_is_named() -> None:
    with listening(None) as port:
        assert failure(f"https://127.0.0.1:{port}") == NOT_TLS


def test_a_port_where_nothing_listens_and_an_unknown_host_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        assert "nothing listens there" in failure(f"http://127.0.0.1:{taken.getsockname()[1]}")
    error = httpx.ConnectError("[Errno -2]")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert "host name is unknown" in explain(error, "http://gateway.invalid")
    assert "no answer in time" in explain(TimeoutError(), "http://127.0.0.1:1")


def test_any_other_failure_keeps_its_own_words() -> None:
    assert explain(ValueError("odd"), "https://127.0.0.1:1") == "odd"
    assert explain(ValueError(), "http://127.0.0.1:1") == "ValueError"


def test_a_reason_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    connection_errors._last_logged.clear()
    now = [100.0]
    monkeypatch.setattr(connection_errors.time, "monotonic", lambda: now[0])
    seen = []
    for now[0] in (100.0, 159.0, 160.0):
        log_handshake("TLSV1_ALERT_UNKNOWN_CA")
        seen.append(len(logged(caplog)))
    assert seen == [1, 1, 2]
    log_handshake("UNEXPECTED_EOF_WHILE_READING")  # a port scan says nothing
    assert len(logged(caplog)) == 2
