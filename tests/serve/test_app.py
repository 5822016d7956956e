from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from feddrm.serve.app import FAST_PATHS, build_gateway
from feddrm.serve.http.middleware import FastPaths, RequestMiddleware
from feddrm.serve.settings import GatewaySettings


def test_the_layers_of_the_application(run: Path, tmp_path: Path) -> None:
    app = build_gateway(run, GatewaySettings(audit=str(tmp_path / "audit.sqlite")))
    assert isinstance(app, RequestMiddleware)
    assert isinstance(app.app, FastPaths)
    assert set(FAST_PATHS) == set(app.app._matches)
    inner = app.app.app

    async def start_and_stop() -> None:
        async with inner.router.lifespan_context(inner):
            assert (tmp_path / "audit.sqlite").exists()

    asyncio.run(start_and_stop())  # closes the audit log


@pytest.mark.slow
def test_the_openapi_document_lists_every_path(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {(path, *sorted(methods)) for path, methods in paths.items()} == {
        ("/v1/route", "post"),
        ("/v1/predict", "post"),
        ("/v1/schema", "get"),
        ("/v1/outcomes", "get", "post"),
        ("/v1/admin/reload", "post"),
        ("/v1/admin/promote", "post"),
        ("/v1/admin/rollback", "post"),
        ("/v1/clients", "get"),
        ("/v1/federation", "get"),
        ("/v1/traffic", "get"),
        ("/v1/samples/{client}/{number}", "get"),
        ("/metrics", "get"),
        ("/v2", "get"),
        ("/v2/health/live", "get"),
        ("/v2/health/ready", "get"),
        ("/v2/models/{model}", "get"),
        ("/v2/models/{model}/ready", "get"),
        ("/v2/models/{model}/infer", "post"),
    }
