"""What stands before every request: its id, its limits, its log line, and an answer whatever happens inside."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from random import getrandbits

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feddrm.serve.batching import Busy
from feddrm.serve.http.error_responses import answer_error
from feddrm.serve.settings import ServerSettings, is_loopback
from feddrm.serve.telemetry.logs import note_request

log = logging.getLogger("feddrm.serve")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PORT = re.compile(rb":\d*$")
CALLERS = 10_000  # whose rate is remembered
GONE = 499  # the caller left before the answer: in the log and the metrics only
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
]
QUIET = frozenset({"/v2/health/live", "/v2/health/ready", "/metrics", "/v1/traffic", "/v1/federation"})
Seen = Callable[[str, int, float], None]  # path, status, seconds


class Guard:
    """The outermost layer of an application."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, seen: Seen | None = None, origins: Collection[str] = ()
    ) -> None:
        self.app, self.settings, self.seen, self.origins = app, settings, seen, origins
        self.in_flight = 0
        self._rates: dict[str, tuple[float, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        state = scope.setdefault("state", {})
        headers = dict(scope["headers"])
        request_id = state["request_id"] = _request_id(headers.get(b"x-request-id", b""))

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode()), *HEADERS]
            await send(message)

        posting = scope["method"] in ("POST", "PUT")
        self.in_flight += posting
        try:
            refused = self._turn_away(scope, headers, posting, request_id)
            await (self.app if refused is None else refused)(scope, receive, reply)
        except ClientDisconnect:
            pass
        except Exception:
            log.exception("request failed", extra={"fields": {"request_id": request_id, "path": _template(scope)}})
            if not status:
                text = "something went wrong inside: the log has it under this request id"
                await answer_error(500, text, request_id)(scope, receive, reply)
        finally:
            self.in_flight -= posting
            seconds, path, status = time.perf_counter() - began, _template(scope), status or GONE
            if self.seen is not None:
                self.seen(path, status, seconds)
            if path not in QUIET:
                line = {"request_id": request_id, "method": scope["method"], "path": path, "status": status}
                note_request(seconds, {**line, "caller": state.get("caller", "")})

    def _turn_away(
        self, scope: Scope, headers: Mapping[bytes, bytes], posting: bool, request_id: str
    ) -> Response | None:
        """Another site's page, too many at once or too many a second: known before the body is read."""
        if self.settings.keys is None and (text := self._strange(headers, posting)):
            return answer_error(403, text, request_id)
        if not posting:
            return None
        if self.in_flight > self.settings.max_in_flight:
            return answer_error(429, str(Busy()), request_id, {"Retry-After": "1"})
        if self.settings.rate and (wait := self._wait(str((scope.get("client") or ("",))[0]))) > 0:
            text = f"more than {self.settings.rate:g} requests a second: try again in {wait:.2g} s"
            return answer_error(429, text, request_id, {"Retry-After": str(max(1, round(wait)))})
        return None

    def _strange(self, headers: Mapping[bytes, bytes], posting: bool) -> str | None:
        """Without keys, being on this machine is the key, and a page of another site in its browser must not use it.

        Such a page comes under a name of its own that leads here, or posts across origins.
        """
        host, origin = headers.get(b"host", b"localhost"), str(headers.get(b"origin", b""), "latin-1")
        if not self.settings.open and not _names_this_machine(host):
            return "this host name is not served: ask for 127.0.0.1 or localhost, or start it with --keys or --open"
        if not posting or not origin or origin.partition("://")[2] == str(host, "latin-1"):
            return None
        if origin in self.origins or "*" in self.origins:
            return None
        return "a page of another origin asks: FEDDRM_SERVE_CORS='[\"https://...\"]' allows an origin"

    def _wait(self, caller: str) -> float:
        """Seconds until this address may ask: a bucket that holds two seconds' worth, refilled steadily.

        By address, not by key: the key has not been looked at yet, and could be another every time.
        """
        rate, now = self.settings.rate, time.monotonic()
        room, before = self._rates.pop(caller, (max(1.0, 2 * rate), now))
        room = min(max(1.0, 2 * rate), room + (now - before) * rate)
        allowed = room >= 1
        self._rates[caller] = (room - 1 if allowed else room, now)
        if len(self._rates) > CALLERS:
            self._rates.pop(next(iter(self._rates)))  # the one that has been quiet longest
        return 0.0 if allowed else (1 - room) / rate


def _template(scope: Scope) -> str:
    """Never the path itself: callers must not be able to make up metrics or log lines."""
    path: str = getattr(scope.get("route"), "path", "other")
    return path


def _request_id(given: bytes) -> str:
    return str(given, "ascii") if REQUEST_ID.fullmatch(given) else f"{getrandbits(128):032x}"


@lru_cache
def _names_this_machine(host: bytes) -> bool:
    return is_loopback(PORT.sub(b"", host).strip(b"[]").decode("latin-1").lower())
