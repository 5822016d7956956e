from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Message

from feddrm.serve.http.decode import SMALL_JSON
from feddrm.serve.http.error_responses import install_error_handlers
from feddrm.serve.http.middleware import RequestMiddleware
from feddrm.serve.oip.codec import read_infer
from feddrm.serve.oip.oip_routes import Outputs, add_oip_routes, answer_infer
from feddrm.serve.settings import HttpSettings


@pytest.mark.parametrize(("count", "in_thread"), [(1, False), (SMALL_JSON, True)])
def test_long_json_is_read_in_a_thread(count: int, in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def read(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return read_infer(*arguments)

    async def receive() -> Message:
        tensor = {"name": "input", "datatype": "FP32", "shape": [count], "data": [1] * count}
        return {"type": "http.request", "body": json.dumps({"inputs": [tensor]}).encode(), "more_body": False}

    async def compute(_: str, x: np.ndarray, parameters: Mapping[str, Any]) -> Outputs:
        return {"sum": x.sum(keepdims=True)}

    monkeypatch.setattr("feddrm.serve.oip.oip_routes.read_infer", read)
    scope = {"type": "http", "headers": [], "path_params": {"model": "m"}, "state": {"request_id": "r"}}
    answer = asyncio.run(answer_infer(Request(scope, receive), HttpSettings(), "v", compute))
    assert json.loads(answer.body)["outputs"][0]["data"] == [count]
    assert threads == [in_thread]


def test_every_path_of_the_protocol() -> None:
    async def infer(request: Request) -> Response:
        return await answer_infer(request, HttpSettings(), "v1", compute)

    async def compute(_: str, x: np.ndarray, parameters: Mapping[str, Any]) -> Outputs:
        return {"sum": x.sum(1) + parameters.get("more", 0)}

    app = FastAPI()
    install_error_handlers(app)
    tensors = [("input", "FP32", [-1, 2])]
    add_oip_routes(app, ("m",), describe=lambda _: ("v1", tensors, []), ready=lambda: {"classes": ["a"]}, infer=infer)
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}

    async def ask(method: str, path: str, **options: Any) -> tuple[int, Any]:
        transport = httpx.ASGITransport(RequestMiddleware(app, HttpSettings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.request(method, path, **options)
            return response.status_code, response.json()

    def answer(method: str, path: str, **options: Any) -> tuple[int, Any]:
        return asyncio.run(ask(method, path, **options))

    assert answer("GET", "/v2")[1]["extensions"] == ["binary_tensor_data"]
    assert answer("GET", "/v2/health/live") == (200, {"live": True})
    assert answer("GET", "/v2/health/ready") == (200, {"ready": True, "classes": ["a"]})
    assert answer("GET", "/v2/models/m/ready") == answer("GET", "/v2/health/ready")
    assert answer("GET", "/v2/models/m")[1]["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 2]}]
    status, content = answer("POST", "/v2/models/m/infer", json={"id": "7", "inputs": [tensor]})
    assert (status, content["id"], content["model_version"]) == (200, "7", "v1")
    assert content["outputs"][0]["data"] == [3]
    _, content = answer("POST", "/v2/models/m/infer", json={"parameters": {"more": 2}, "inputs": [tensor]})
    assert content["outputs"][0]["data"] == [5]
    for method, path in (("GET", "/v2/models/x"), ("GET", "/v2/models/x/ready"), ("POST", "/v2/models/x/infer")):
        status, content = answer(method, path)
        assert (status, content["error"]) == (404, "no model 'x': there is m")
    for method, path in (("GET", "/v2/models/m/versions/2"), ("POST", "/v2/models/m/versions/2/infer")):
        status, content = answer(method, path)
        assert (status, "version '2'" in content["error"]) == (404, True)
