from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from feddrm.errors import FeddrmError
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


def ask(app: Any, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    async def go() -> tuple[int, Any]:
        transport = httpx.ASGITransport(RequestMiddleware(app, HttpSettings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.request(method, path, content=body, headers={"X-Request-ID": "mine"})
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
