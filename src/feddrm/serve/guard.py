"""What stands before every request: its id, its limits, its log line, and an answer whatever happens inside."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feddrm.errors import FeddrmError
from feddrm.serve.batching import Busy
from feddrm.serve.keys import ANYBODY, Caller, Keys
from feddrm.serve.reading import WrongKind
from feddrm.serve.settings import ServerSettings

log = logging.getLogger("feddrm.serve")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CALLERS = 10_000  # whose rate is remembered
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
]
Seen = Callable[[str, int, float], None]  # path, status, seconds


class Refusal(Exception):
    """An answer that is not the one asked for: a status, one line that says what to do, perhaps headers."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers or {}


class Guard:
    """The outermost layer of an application."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, seen: Seen | None = None) -> None:
        self.app, self.settings, self.seen = app, settings, seen
        self.in_flight = 0
        self._rates: dict[str, tuple[float, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = _request_id(scope)
        started = False

        async def reply(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                named = {name for name, _ in message.setdefault("headers", [])}
                extra = [header for header in HEADERS if header[0] not in named]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *extra]
            await send(message)

        posting = scope["method"] in ("POST", "PUT")
        self.in_flight += posting
        try:
            refused = self._turn_away(scope)
            if refused is None:
                await self.app(scope, receive, reply)
            else:
                await refused(scope, receive, reply)
        except Exception:
            log.exception("request failed", extra={"fields": {"request_id": request_id, "path": scope["path"]}})
            if not started:
                await answer_error(
                    500, "something went wrong inside: the log has it under this request id", request_id
                )(scope, receive, reply)
        finally:
            self.in_flight -= posting
            seconds = time.perf_counter() - began
            # The template, never the path itself: callers must not be able to make up metrics or log lines.
            path = getattr(scope.get("route"), "path", "other")
            if self.seen is not None:
                self.seen(path, status, seconds)
            if log.isEnabledFor(logging.INFO) and path not in QUIET:
                fields = {"request_id": request_id, "method": scope["method"], "path": path, "status": status,
                          "ms": round(1e3 * seconds, 2), "caller": state.get("caller", "")}  # fmt: skip
                log.info("request", extra={"fields": fields})

    def _turn_away(self, scope: Scope) -> Response | None:
        """Too many at once, too many a second, or too large: known before the body is read."""
        if scope["method"] not in ("POST", "PUT"):
            return None
        request_id = scope["state"]["request_id"]
        if self.in_flight > self.settings.max_in_flight:
            return answer_error(429, str(Busy()), request_id, {"Retry-After": "1"})
        if self.settings.rate and (wait := self._wait(str((scope.get("client") or ("",))[0]))) > 0:
            text = f"more than {self.settings.rate:g} requests a second: try again in {wait:.2g} s"
            return answer_error(429, text, request_id, {"Retry-After": str(max(1, round(wait)))})
        return None

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


QUIET = frozenset({"/v2/health/live", "/v2/health/ready", "/metrics", "/v1/traffic", "/v1/federation"})


def answer_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON as compact as it gets."""
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content, status, headers, media_type="application/json")


def answer_error(status: int, text: str, request_id: str, headers: dict[str, str] | None = None) -> Response:
    """What was wrong, in one line, and where to find it in the log."""
    return answer_json({"error": " ".join(text.split()), "request_id": request_id}, status, headers)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, or a refusal as soon as it is known to be too long."""
    too_long = Refusal(413, f"a body of more than {limit} bytes: send less")
    given = request.headers.get("content-length", "")
    if given.isdigit() and int(given) > limit:
        raise too_long
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_long
        parts.append(part)
    return b"".join(parts)


def authorise(request: Request, keys: Keys | None, scope: str) -> Caller:
    """Whose key it is; no key, an unknown one or one without the scope is refused."""
    if keys is None:
        return ANYBODY
    header = request.headers.get("authorization", "")
    key = header[7:] if header[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
    caller = keys.find(key) if key else None
    if caller is None:
        raise Refusal(401, "no valid API key: send 'Authorization: Bearer KEY'", {"WWW-Authenticate": "Bearer"})
    request.state.caller = caller.name
    if scope not in caller.scopes:
        raise Refusal(403, f"the key '{caller.name}' has no scope '{scope}'")
    return caller


def install_errors(app: FastAPI) -> None:
    """Every way a request can fail becomes the same small message."""

    def reply(request: Request, status: int, text: str, headers: Any = None) -> Response:
        return answer_error(status, text, request.state.request_id, headers)

    @app.exception_handler(Refusal)
    async def refusal(request: Request, error: Refusal) -> Response:
        return reply(request, error.status, str(error), error.headers)

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> Response:
        return reply(request, 429, str(error), {"Retry-After": str(error.seconds)})

    @app.exception_handler(FeddrmError)
    async def mistake(request: Request, error: FeddrmError) -> Response:
        return reply(request, 415 if isinstance(error, WrongKind) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return reply(request, 422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return reply(request, error.status_code, str(error.detail), error.headers)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": round(record.created, 3), "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given: str = value.decode("latin-1")
            if REQUEST_ID.fullmatch(given):
                return given
    return uuid.uuid4().hex
