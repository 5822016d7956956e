"""What gateway and predictor are made of: an application without paths, its middleware, direct calls of busy paths.

The middleware gives every request its id, trace, limits, log line and, if need be, its error answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from random import getrandbits
from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feddrm._version import __version__
from feddrm.serve.batching import Busy
from feddrm.serve.http.decode import check_query
from feddrm.serve.http.error_responses import ERROR_RESPONSES, error_response, install_error_handlers, response_for
from feddrm.serve.settings import HttpSettings, is_loopback
from feddrm.serve.telemetry.logs import log_request
from feddrm.serve.telemetry.tracing import RequestTrace, Tracer

log = logging.getLogger("feddrm.serve")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PORT = re.compile(rb":\d*$")
MAX_CALLERS = 10_000  # addresses whose request rate is remembered
STOPS = "the server stops: send the request again in a while"
FAILED = "something went wrong inside: the log has it under this request id"
CALLER_LEFT = 499  # the caller left before the answer; seen in the log and the metrics only
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
]
UNLOGGED = frozenset({"/v2/health/live", "/v2/health/ready", "/metrics", "/v1/traffic", "/v1/federation"})
OnRequest = Callable[[str, int, float], None]  # path, status, seconds


class RequestMiddleware:
    """The outermost layer of an application: id, limits, security headers, log line, and an answer to any failure."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        on_request: OnRequest | None = None,
        origins: Collection[str] = (),
        tracer: Tracer | None = None,
    ) -> None:
        self.app, self.settings, self.on_request, self.origins = app, settings, on_request, origins
        self.tracer = tracer or Tracer()
        self.in_flight = 0
        self._rates: dict[str, tuple[float, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        state, method = scope.setdefault("state", {}), scope["method"]
        if method == "HEAD":  # answered as GET is, without the body
            scope = {**scope, "method": "GET"}
        headers = dict(scope["headers"])
        request_id = state["request_id"] = _request_id(headers.get(b"x-request-id", b""))
        trace = self.tracer.begin(scope["headers"], request_id, scope["path"] in UNLOGGED)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = ((b"x-request-id", request_id.encode()), *SECURITY_HEADERS)
                message["headers"] = [*message.get("headers", ()), *added]
            elif method == "HEAD":
                message["body"] = b""
            await send(message)

        counted = method in ("POST", "PUT")
        self.in_flight += counted
        failure: Response | None = None
        try:
            rejection = self._rejection(scope, headers, counted, request_id)
            try:
                await (self.app if rejection is None else rejection)(scope, receive, send_with_headers)
            except ClientDisconnect:
                pass
            except asyncio.CancelledError:  # the server stops, and the time for running requests is over
                failure = error_response(503, STOPS, request_id, {"Retry-After": "2"})
            except Exception:
                fields = {"request_id": request_id, "trace_id": trace.trace_id, "path": _path_template(scope)}
                log.exception("request failed", extra={"fields": fields})
                failure = error_response(500, FAILED, request_id)
            if failure is not None and not status:
                await failure(scope, receive, send_with_headers)
        finally:
            self.in_flight -= counted
            # The method of gRPC is the name of the call.
            self._end(scope, trace, state.get("rpc", method), status or CALLER_LEFT, time.perf_counter() - started)

    def _end(self, scope: Scope, trace: RequestTrace, method: str, status: int, seconds: float) -> None:
        path, caller = _path_template(scope), scope["state"].get("caller", "")
        if self.on_request is not None:
            self.on_request(path, status, seconds)
        if path not in UNLOGGED:
            line = {"request_id": trace.request_id, "trace_id": trace.trace_id, "method": method, "path": path}
            log_request(seconds, {**line, "status": status, "caller": caller})
        attributes = {"http.request.method": method, "http.route": path, "http.response.status_code": status}
        attributes["feddrm.request_id"] = trace.request_id
        self.tracer.end(trace, f"{method} {path}", attributes, f"status {status}" if status >= 500 else "")

    def _rejection(
        self, scope: Scope, headers: Mapping[bytes, bytes], counted: bool, request_id: str
    ) -> Response | None:
        """The response to a request that is rejected before its body is read; None for any other."""
        if not self.settings.protected and (text := self._foreign_page(headers, counted)):
            return error_response(403, text, request_id)
        if not counted:
            return None
        if self.in_flight > self.settings.max_in_flight:
            return error_response(429, str(Busy()), request_id, {"Retry-After": "1"})
        if self.settings.rate and (wait := self._seconds_to_wait(str((scope.get("client") or ("",))[0]))) > 0:
            text = f"more than {self.settings.rate:g} requests a second: try again in {wait:.2g} s"
            return error_response(429, text, request_id, {"Retry-After": str(max(1, round(wait)))})
        return None

    def _foreign_page(self, headers: Mapping[bytes, bytes], posting: bool) -> str | None:
        """Why a request may come from another site's page in a browser on this machine; None if it cannot.

        Without keys, everybody on this machine has access, so a page of another site must not get it through the
        browser. Such a page uses a host name of its own that points here, or it posts across origins.
        """
        host, origin = headers.get(b"host", b"localhost"), str(headers.get(b"origin", b""), "latin-1")
        if not self.settings.open and not _is_loopback_host(host):
            return "this host name is not served: ask for 127.0.0.1 or localhost, or start it with --keys or --open"
        if not posting or not origin or origin.partition("://")[2] == str(host, "latin-1"):
            return None
        if origin in self.origins or "*" in self.origins:
            return None
        return "a page of another origin asks: FEDDRM_SERVE_CORS='[\"https://...\"]' allows an origin"

    def _seconds_to_wait(self, address: str) -> float:
        """Seconds until this address may send a request: a token bucket that holds two seconds' worth.

        The limit is per address, not per key: keys are checked later, and a caller could send a new one each time.
        """
        rate, now = self.settings.rate, time.monotonic()
        tokens, before = self._rates.pop(address, (max(1.0, 2 * rate), now))
        tokens = min(max(1.0, 2 * rate), tokens + (now - before) * rate)
        allowed = tokens >= 1
        self._rates[address] = (tokens - 1 if allowed else tokens, now)
        if len(self._rates) > MAX_CALLERS:
            self._rates.pop(next(iter(self._rates)))  # the address that has been silent longest
        return 0.0 if allowed else (1 - tokens) / rate


class FastPaths:
    """Calls the endpoints of some POST paths directly; all other requests go to FastAPI.

    FastAPI's layers cost more than the rest of the work on a small request. The endpoints are FastAPI's own, looked up
    once, so both ways give the same answers (docs/decisions/0004-fastapi-documents-starlette-answers.md).
    """

    def __init__(self, app: FastAPI, paths: Iterable[str]) -> None:
        self.app = app
        self._matches = {path: _find_route(app, path) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = self._matches.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if match is None:
            await self.app(scope, receive, send)
            return
        scope.update(match)
        request = Request(scope, receive)
        try:
            await check_query(request)
            response = await match["endpoint"](request)
        except Exception as error:
            response = response_for(error, scope["state"]["request_id"])
            if response is None:
                raise
        await response(scope, receive, send)


def new_application(title: str, lifespan: Callable[[FastAPI], Any], **described: Any) -> FastAPI:
    """An application without paths: it refuses unknown options, and answers errors in our form."""
    app = FastAPI(
        title=title,
        version=__version__,
        lifespan=lifespan,
        dependencies=[Depends(check_query)],
        responses={422: ERROR_RESPONSES[422]},
        docs_url=None,  # this page would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy it would send callers, and their keys, to http://
        **described,
    )
    install_error_handlers(app)
    return app


def _find_route(app: FastAPI, path: str) -> Scope:
    """What Starlette's routing adds to the scope of a POST request to this path."""
    for route in app.routes:
        match, child_scope = route.matches({"type": "http", "method": "POST", "path": path, "headers": []})
        if match is Match.FULL:
            return child_scope
    raise LookupError(f"no POST route has the path {path}")


def _path_template(scope: Scope) -> str:
    """The route's template, never the path itself: callers must not be able to invent metrics or log lines."""
    path: str = getattr(scope.get("route"), "path", "other")
    return path


def _request_id(given: bytes) -> str:
    return str(given, "ascii") if REQUEST_ID.fullmatch(given) else f"{getrandbits(128):032x}"


@lru_cache
def _is_loopback_host(host: bytes) -> bool:
    return is_loopback(PORT.sub(b"", host).strip(b"[]").decode("latin-1").lower())
