"""Calls of one HTTP server by the standard library alone: httpx takes longer to import than the server to answer."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from urllib.parse import urlencode, urlsplit

from feddrm.errors import FeddrmError

CALL_ERRORS = (OSError, HTTPException, ValueError)  # ValueError: a host or a header that cannot be sent


@dataclass(frozen=True)
class HttpReply:
    """What a server answered."""

    status: int
    headers: HTTPMessage
    body: bytes


class HttpSession:
    """Calls one server, with the same headers in every request. It knows neither proxies nor redirections.

    Connections stay open between calls. Every thread may call: one connection serves one call at a time.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float, tls: ssl.SSLContext | None) -> None:
        try:
            place = urlsplit(url)
            self._host, self._port = place.hostname or "", place.port
        except ValueError as error:
            raise FeddrmError(f"'{url}' is no address ({error}): give one such as http://127.0.0.1:8080") from error
        if place.scheme not in ("http", "https") or not self._host:
            raise FeddrmError(f"'{url}' is no address: give one such as http://127.0.0.1:8080")
        self._tls = None if place.scheme == "http" else tls or ssl.create_default_context()
        self._prefix, self._headers, self._timeout = place.path.rstrip("/"), dict(headers), timeout
        self._idle: list[HTTPConnection] = []

    def call(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        params: Mapping[str, object] | None = None,
        content_type: str = "application/json",
    ) -> HttpReply:
        """Send a request and read the whole answer."""
        given = {key: value for key, value in (params or {}).items() if value is not None}
        query = f"?{urlencode(given)}" if given else ""
        headers = self._headers | ({} if content is None else {"Content-Type": content_type})
        with self._connection() as connection:
            connection.request(method, f"{self._prefix}{path}{query}", content, headers)
            answer = connection.getresponse()
            return HttpReply(answer.status, answer.headers, answer.read())

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[HTTPConnection]:
        """A connection that nobody uses; it is kept for the next call unless this one fails."""
        connection = self._take_idle() or self._new()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _take_idle(self) -> HTTPConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.sock is not None and not _readable(connection.sock):
                return connection
            connection.close()
        return None

    def _new(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=self._timeout)
        return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)


def _readable(idle: socket.socket) -> bool:
    """Whether the other end has closed an idle connection: there is nothing else that it could have sent."""
    with selectors.DefaultSelector() as selector:
        selector.register(idle, selectors.EVENT_READ)
        return bool(selector.select(0))
