from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from feddrm.errors import FeddrmError
from feddrm.serve.http import middleware
from feddrm.serve.http.error_responses import install_error_handlers
from feddrm.serve.http.middleware import FastPaths, RequestMiddleware
from feddrm.serve.settings import HttpSettings
from serving import Launch


@pytest.mark.slow
def test_request_ids_and_security_headers(http: httpx.Client) -> None:
    assert http.get("/v2", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    odd = http.get("/v2", headers={"X-Request-ID": "bad id\twith spaces"}).headers["x-request-id"]
    assert len(odd) == 32
    page = http.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    cross = http.options("/v1/route", headers={"Origin": "http://x", "Access-Control-Request-Method": "POST"})
    assert "access-control-allow-origin" not in cross.headers


@pytest.mark.slow
def test_head_is_answered_as_get_without_the_body(http: httpx.Client) -> None:
    """Load balancers ask so whether a server is well."""
    for path in ("/", "/v2/health/ready", "/v1/schema", "/nowhere", "/v1/route"):
        full, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (full.status_code, b"")
        assert head.headers["content-length"] == str(len(full.content))


@pytest.mark.slow
def test_no_path_sends_its_caller_elsewhere(http: httpx.Client) -> None:
    """Behind a proxy, a redirect to the path without its slash went to http://, with the key."""
    for path in ("/v1/route/", "/v2/health/ready/", "/v2/models/router/infer/"):
        assert http.post(path, json={}).status_code == http.get(path).status_code == 404


@pytest.mark.slow
def test_pages_of_other_sites_are_rejected(http: httpx.Client, run: Path, launch: Launch, tmp_path: Path) -> None:
    """Without keys: requests for another host name, and posts across origins."""
    body, own = {"features": [[0.0] * 16]}, http.base_url
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "8.8.8.8"):
        for answer in (http.get("/v1/samples/fax/0", headers={"Host": host}),
                       http.post("/v1/route", json=body, headers={"Host": host})):  # fmt: skip
            assert (answer.status_code, "not served" in answer.json()["error"]) == (403, True)
    for host in ("localhost", "LOCALHOST:81", "127.0.0.1", "127.0.0.9:8080", "[::1]:8080"):
        assert http.get("/v1/samples/fax/0", headers={"Host": host}).status_code == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{own.port + 1}"):
        for path in ("/v1/admin/reload", "/v1/route"):
            answer = http.post(path, json=body, headers={"Origin": origin})
            assert (answer.status_code, "FEDDRM_SERVE_CORS" in answer.json()["error"]) == (403, True)
    assert http.post("/v1/route", json=body, headers={"Origin": f"http://127.0.0.1:{own.port}"}).status_code == 200
    process = launch("serve", run, "--port", 0, "--open", "--audit", tmp_path / "a.sqlite",
                     FEDDRM_SERVE_CORS='["https://lab.example"]')  # fmt: skip
    headers = {"Host": "gateway.example", "Origin": "https://lab.example"}
    answer = httpx.post(f"{process.wait_ready()}/v1/route", json=body, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://lab.example")
    headers["Origin"] = "https://evil.example"
    assert httpx.post(f"{process.url}/v1/route", json=body, headers=headers).status_code == 403


@pytest.mark.slow
def test_requests_above_the_rate_are_rejected(run: Path, launch: Launch, tmp_path: Path) -> None:
    """One request in ten seconds is less than the slowest machine sends."""
    url = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite", "--rate", 0.1).wait_ready()
    responses = [httpx.post(f"{url}/v1/route", json={"features": [[0.0] * 16]}) for _ in range(30)]
    rejected = [response for response in responses if response.status_code == 429]
    assert rejected
    assert all(int(response.headers["Retry-After"]) >= 1 for response in rejected)
    counted = f'feddrm_requests_total{{path="other",status="429"}} {len(rejected)}.0'
    assert counted in httpx.get(f"{url}/metrics").text


def small_app() -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/models/{model}")
    async def endpoint(request: Request) -> Response:
        body = await request.body()
        if body == b"bad":
            raise FeddrmError("bad body: send another")
        if body == b"broken":
            raise RuntimeError("secret")
        return JSONResponse({"model": request.path_params["model"], "body": body.decode()})

    return app


def ask(app: Any, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    async def go() -> tuple[int, Any]:
        transport = httpx.ASGITransport(RequestMiddleware(app, HttpSettings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.request(method, path, content=body, headers={"X-Request-ID": "mine", **headers})
            return response.status_code, response.json()

    return asyncio.run(go())


@pytest.mark.parametrize(("body", "status"), [(b"fine", 200), (b"bad", 422)])
def test_a_fast_path_gives_the_same_answer_as_fastapi(body: bytes, status: int) -> None:
    app = small_app()
    fast, slow = ask(FastPaths(app, ["/models/a"]), "POST", "/models/a", body), ask(app, "POST", "/models/a", body)
    assert fast == slow
    assert fast[0] == status


def test_other_paths_and_methods_go_to_fastapi() -> None:
    app = FastPaths(small_app(), ["/models/a"])
    assert ask(app, "POST", "/models/b", b"x") == (200, {"model": "b", "body": "x"})
    assert ask(app, "GET", "/models/a")[0] == 405
    assert ask(app, "POST", "/nowhere")[0] == 404


def test_a_fast_path_without_a_route_is_an_error_at_start() -> None:
    with pytest.raises(LookupError, match="/nowhere"):
        FastPaths(small_app(), ["/nowhere"])


def test_an_internal_error_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    status, content = ask(FastPaths(small_app(), ["/models/a"]), "POST", "/models/a", b"broken")
    assert (status, content["request_id"]) == (500, "mine")
    assert "secret" not in json.dumps(content)
    assert "secret" in caplog.text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the middleware sees; its only entry can be changed."""
    now = [1000.0]
    monkeypatch.setattr(middleware, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def limited(rate: float) -> Callable[[str], float]:
    """Seconds that an address has to wait."""
    return RequestMiddleware(small_app(), HttpSettings(rate=rate))._seconds_to_wait


def test_an_address_may_send_two_seconds_worth_at_once_and_then_as_fast_as_the_rate(clock: list[float]) -> None:
    wait = limited(2.0)
    for _ in range(2):
        assert [wait("a") for _ in range(6)] == [0, 0, 0, 0, 0.5, 0.5], "being refused costs nothing"
        clock[0] += 0.25
        assert (wait("a"), wait("b")) == (0.25, 0.0), "another address has its own limit"
        clock[0] += 0.25
        assert [wait("a") for _ in range(2)] == [0, 0.5]
        clock[0] += 100  # no more than two seconds' worth is saved
    slow = limited(0.1)
    assert [slow("a") for _ in range(2)] == [0, 10.0], "one request at least"


def test_the_address_that_was_silent_longest_is_forgotten(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MAX_CALLERS", 2)
    wait = limited(0.5)
    assert [wait(address) for address in ("a", "b", "a", "c")] == [0, 0, 2.0, 0]
    assert (wait("a"), wait("b")) == (2.0, 0), "it begins anew, c or a is forgotten in its place"


@pytest.mark.parametrize(
    ("settings", "method", "status", "wait"),
    [
        ({"rate": 0.1}, "POST", 429, "10"),
        ({"rate": 0.9}, "POST", 429, "1"),
        ({"rate": 0.1}, "GET", 405, None),
        ({"max_in_flight": 1}, "POST", 200, None),
    ],
)
def test_posts_above_a_limit_are_rejected_with_the_time_to_wait(
    settings: dict[str, float], method: str, status: int, wait: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = RequestMiddleware(small_app(), HttpSettings(**settings))
    clock = iter([0.0, 0.0, 0.2])
    monkeypatch.setattr(middleware, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=lambda: 0.0))

    async def go() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            for _ in range(2):
                last = await http.request(method, "/models/a")
            return last

    answer = asyncio.run(go())
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, wait)


def test_more_requests_than_allowed_at_once_are_rejected() -> None:
    app = RequestMiddleware(small_app(), HttpSettings(max_in_flight=2))
    scope = {"type": "http", "headers": []}
    nobody = RequestMiddleware(small_app(), HttpSettings(rate=0.1))
    answers = [nobody._rejection({"client": None}, {}, True, "id") for _ in range(2)]  # as behind a Unix socket
    assert [answer.status_code if answer else None for answer in answers] == [None, 429]
    for in_flight, status in ((2, None), (3, 429)):
        app.in_flight = in_flight  # this one is counted already
        rejection = app._rejection(scope, {}, True, "id")
        assert (rejection.status_code if rejection else None) == status
        assert app._rejection(scope, {}, False, "id") is None


@pytest.mark.parametrize(
    ("host", "origin", "refused_get", "refused_post"),
    [
        (None, None, False, False),
        ("localhost", None, False, False),
        ("LOCALHOST:81", None, False, False),
        ("[::1]:8080", None, False, False),
        ("evil.example", None, True, True),
        ("127.0.0.1.evil.example", None, True, True),
        ("localhost:81", "http://localhost:81", False, False),
        ("localhost:81", "http://localhost:82", False, True),
        ("localhost", "http://evil.example", False, True),
        ("localhost", "null", False, True),
        ("localhost", "https://lab.example", False, False),
    ],
)
def test_without_keys_other_sites_pages_are_refused(
    host: str | None, origin: str | None, refused_get: bool, refused_post: bool
) -> None:
    app = small_app()
    given = {name: value for name, value in (("host", host), ("origin", origin)) if value is not None}
    headers = {name.encode(): value.encode() for name, value in given.items()}
    for posting, refused in ((False, refused_get), (True, refused_post)):
        asked: Any = {"headers": headers, "counted": posting, "request_id": "id"}
        own = RequestMiddleware(app, HttpSettings(), origins=["https://lab.example"])
        rejection = own._rejection({}, **asked)
        if rejection is not None:
            assert ask(FastPaths(app, ["/models/a"]), "POST", "/models/a", **given)[0] == 403
        assert (rejection is not None and rejection.status_code == 403) == refused
        assert (own._foreign_page(headers, posting) is not None) == refused
        anywhere = RequestMiddleware(app, HttpSettings(), origins=["*"])
        assert (anywhere._foreign_page(headers, posting) is not None) == refused_get, "the host counts all the same"
        if host == "evil.example":
            assert RequestMiddleware(app, HttpSettings(open=True))._rejection({}, **asked) is None
        with_keys = RequestMiddleware(app, HttpSettings(keys=Path("keys.yaml")))
        assert with_keys._rejection({}, **asked) is None, "a page of another site has no key"


@pytest.mark.parametrize(
    ("error", "before", "statuses", "counted"),
    [
        (ClientDisconnect(), [], [], 499),
        (RuntimeError("secret"), [], [500], 500),
        (RuntimeError("secret"), [{"type": "http.response.start", "status": 200}], [200], 200),
    ],
)
def test_a_failure_is_answered_once_and_only_if_somebody_is_there(
    error: Exception, before: list[Any], statuses: list[int], counted: int
) -> None:
    sent: list[Any] = []
    seen: list[tuple[str, int]] = []

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        for message in before:
            await send(message)
        raise error

    async def send(message: Any) -> None:
        sent.append(message)

    app = RequestMiddleware(failing, HttpSettings(), lambda path, status, _: seen.append((path, status)))
    scope = {"type": "http", "method": "POST", "path": "/v1/route", "headers": [], "query_string": b""}
    asyncio.run(app(scope, send, send))  # type: ignore[arg-type]
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == statuses
    assert (seen, app.in_flight) == ([("other", counted)], 0)


def test_a_request_that_outlives_a_stopping_server_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn cancels it; that is neither a fault with a stack trace nor a caller who has left."""

    async def go() -> tuple[list[Any], list[tuple[str, int]]]:
        begun, sent, counted = asyncio.Event(), [], []

        async def endless(*_: Any) -> None:
            begun.set()
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        app = RequestMiddleware(endless, HttpSettings(), lambda path, status, _: counted.append((path, status)))
        scope = {"type": "http", "method": "POST", "path": "/v1/route", "headers": [], "query_string": b""}
        request = asyncio.create_task(app(scope, begun.wait, send))
        await begun.wait()
        request.cancel()
        await request
        return sent, counted

    (start, body), counted = asyncio.run(go())
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"2")
    assert "send the request again" in json.loads(body["body"])["error"]
    assert counted == [("other", 503)]
    assert not caplog.records
