from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc_health", reason="pip install 'feddrm[grpc]' to run this")

import grpc
import numpy as np
from fastapi import FastAPI, Request
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.responses import Response

from feddrm.serve.access import Access
from feddrm.serve.auth import add_key
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.error_responses import ERROR_RESPONSES, ApiError, install_error_handlers
from feddrm.serve.http.middleware import FastPaths, RequestMiddleware
from feddrm.serve.oip.grpc_messages import MESSAGES, SERVICE
from feddrm.serve.oip.grpc_server import STATUS_CODES, GrpcServer, _peer
from feddrm.serve.oip.oip_routes import Outputs, add_oip_routes, answer_infer
from feddrm.serve.server import bind
from feddrm.serve.settings import HttpSettings
from refusal import refused

Code = grpc.StatusCode


class Served:
    """The gRPC form of a model 'm' that adds numbers up, and a channel to it. Values above 255 are an error inside."""

    def __init__(self, **settings: Any) -> None:
        self.settings = HttpSettings(**settings)
        access = Access(self.settings)
        self.ready: bool | None = True  # None: an error inside
        self.go_on, self.begun = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.answered: list[Any] = []
        self.statuses: list[tuple[str, int]] = []
        app = FastAPI()
        install_error_handlers(app)
        tensors = [("input", "FP32", [-1, 2])]

        async def compute(_: str, x: np.ndarray, parameters: Mapping[str, Any]) -> Outputs:
            self.begun.set()
            await self.go_on.wait()
            if x.max() > 255:
                raise RuntimeError
            self.answered.append(x.sum().item())
            return {"sum": x.sum(1) + parameters.get("more", 0), "name": ["a"] * len(x)}

        async def infer(request: Request) -> Response:
            await authorise(request, access, "predict")
            return await answer_infer(request, self.settings, "v1", compute)

        add_oip_routes(app, ("m",), describe=lambda _: ("v1", tensors, []), ready=self._ready, infer=infer)
        layers = RequestMiddleware(
            FastPaths(app, ["/v2/models/m/infer"]),
            self.settings,
            lambda path, status, _: self.statuses.append((path, status)),
        )
        with bind(self.settings, grpc=True) as sock:
            self.port = sock.getsockname()[1]
        self.requests: set[asyncio.Task[Any]] = set()
        self.server = GrpcServer(layers, self.settings, self.port, self.requests)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")

    def _ready(self) -> dict[str, Any]:
        if self.ready is None:
            raise RuntimeError
        if not self.ready:
            raise ApiError(503, "starting or stopping")
        return {}

    async def call(self, name: str, message: Any = None, **metadata: str) -> Any:
        """The answer to a call as a dictionary, or the code and text of its error."""
        content = message if isinstance(message, bytes) else MESSAGES[f"{name}Request"](**message or {})
        content = content if isinstance(content, bytes) else content.SerializeToString()
        answer = MESSAGES[f"{name}Response"]()
        pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        running = self.channel.unary_unary(f"/{SERVICE.full_name}/{name}")(content, metadata=pairs)
        try:
            answer.ParseFromString(await running)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()
        finally:
            self.trailing = dict(await running.trailing_metadata() or ())
        return MessageToDict(answer, preserving_proto_field_name=True)


@contextlib.asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    made = Served(**settings)
    await made.server.start()
    try:
        yield made
    finally:
        await made.channel.close()
        await made.server.stop()


def numbers(*values: float, **more: Any) -> dict[str, Any]:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, len(values)], "contents": {"fp32_contents": values}}
    return {"model_name": "m", "inputs": [tensor], **more}


def test_every_call_of_the_protocol() -> None:
    async def go() -> None:
        async with served() as grpc_form:
            call = grpc_form.call
            assert await call("ServerLive") == {"live": True}
            assert await call("ServerReady") == await call("ModelReady", {"name": "m"}) == {"ready": True}
            assert (await call("ServerMetadata"))["name"] == "feddrm"
            about = await call("ModelMetadata", {"name": "m"})
            assert about["versions"] == ["v1"]
            assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": ["-1", "2"]}]
            answer = await call("ModelInfer", numbers(1, 2, id="7", parameters={"more": {"int64_param": 2}}))
            assert (answer["model_name"], answer["model_version"], answer["id"]) == ("m", "v1", "7")
            assert [out["name"] for out in answer["outputs"]] == ["sum", "name"]
            answer = await call("ModelInfer", numbers(1, 2, outputs=[{"name": "name"}]), x_request_id="mine")
            assert [out["name"] for out in answer["outputs"]] == ["name"]
            assert (answer["id"], grpc_form.trailing["x-request-id"]) == ("mine", "mine")
            assert grpc_form.statuses[-1] == ("/v2/models/{model}/infer", 200)
            grpc_form.ready = False
            assert await call("ServerReady") == await call("ModelReady", {"name": "m"}) == {}  # false
            assert await call("ServerLive") == {"live": True}

    asyncio.run(go())


def test_every_error_of_the_http_form_has_a_code() -> None:
    assert set(ERROR_RESPONSES) | {404, 409, 500} <= set(STATUS_CODES)


def test_an_error_has_its_code_text_and_request_id() -> None:
    async def go() -> None:
        async with served(max_body_bytes=1024) as grpc_form:
            for message, code, part in (
                (numbers(1, 2, model_name="x"), Code.NOT_FOUND, "there is m"),
                (numbers(1, 2, model_name=""), Code.NOT_FOUND, "there is m"),
                (numbers(1, 2, model_name="m/ready"), Code.NOT_FOUND, "there is m"),
                (numbers(1, 2, model_version="v2"), Code.NOT_FOUND, "version 'v2'"),
                (numbers(1, 2, outputs=[{"name": "x"}]), Code.INVALID_ARGUMENT, "no output 'x'"),
                (numbers(1, 2, raw_input_contents=[b""]), Code.INVALID_ARGUMENT, "raw_input_contents"),
                (numbers(1, 1000), Code.INTERNAL, "request id"),
            ):
                found = await grpc_form.call("ModelInfer", message, x_request_id="mine")
                assert found[0] == code, found
                assert part in found[1]
                assert grpc_form.trailing["x-request-id"] == "mine"
            for name in ("ModelReady", "ModelMetadata"):
                for message in ({"name": "m/ready"}, {"name": "m", "version": "2"}):
                    assert (await grpc_form.call(name, message))[0] == Code.NOT_FOUND
            assert (await grpc_form.call("ModelInfer", b"\xff"))[0] == Code.INVALID_ARGUMENT
            assert (await grpc_form.call("ModelInfer", numbers(*[1] * 300)))[0] == Code.RESOURCE_EXHAUSTED
            grpc_form.ready = None
            assert await grpc_form.call("ServerReady") == (Code.INTERNAL, "Internal Server Error")
            longer = "\x01" * 200  # as JSON it is longer than the message
            assert (await grpc_form.call("ModelInfer", numbers(1, 2, id=longer)))[0] == Code.RESOURCE_EXHAUSTED
            assert grpc_form.statuses[-1][1] == 413

    asyncio.run(go())


def test_keys_are_those_of_the_http_form_and_need_the_scope(tmp_path: Path) -> None:
    route, predict = (add_key(tmp_path / "keys.yaml", scope, [scope]) for scope in ("route", "predict"))

    async def go() -> None:
        async with served(keys=tmp_path / "keys.yaml") as grpc_form:
            for metadata, code in (
                ({}, Code.UNAUTHENTICATED),
                ({"x_api_key": "guess"}, Code.UNAUTHENTICATED),
                ({"x_api_key": route}, Code.PERMISSION_DENIED),
            ):
                assert (await grpc_form.call("ModelInfer", numbers(1, 2), **metadata))[0] == code
            for metadata in ({"x_api_key": predict}, {"authorization": f"Bearer {predict}"}):
                assert "outputs" in await grpc_form.call("ModelInfer", numbers(1, 2), **metadata)
            assert await grpc_form.call("ServerLive") == {"live": True}

    asyncio.run(go())


def test_the_message_of_a_refused_call_is_freed_at_once(tmp_path: Path) -> None:
    """8 MiB of bytes can become hundreds of MiB of message, and garbage is collected seldom."""
    add_key(tmp_path / "keys.yaml", "lab", ["predict"])

    async def go() -> None:
        async with served(keys=tmp_path / "keys.yaml") as grpc_form:
            assert (await grpc_form.call("ModelInfer", numbers(1, 2)))[0] == Code.UNAUTHENTICATED
            assert MESSAGES["ModelInferRequest"] not in map(type, gc.get_objects())

    gc.collect()  # what other tests left
    gc.disable()
    try:
        asyncio.run(go())
    finally:
        gc.enable()


def test_a_slow_message_ends_its_call() -> None:
    async def go() -> None:
        async with served(body_seconds=0.05) as grpc_form:
            for name, ends in (("ModelInfer", False), ("ServerLive", True)):
                running = grpc_form.channel.stream_unary(f"/{SERVICE.full_name}/{name}")()
                if ends:
                    await running.done_writing()  # without a message
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await running
                assert error.value.code() == (Code.INVALID_ARGUMENT if ends else Code.DEADLINE_EXCEEDED)
            assert await grpc_form.call("ServerLive") == {"live": True}

    asyncio.run(go())


def test_too_many_calls_at_once_are_told_to_come_back() -> None:
    async def go() -> None:
        async with served(max_in_flight=1) as grpc_form:
            grpc_form.go_on.clear()
            first = asyncio.create_task(grpc_form.call("ModelInfer", numbers(1, 2)))
            await grpc_form.begun.wait()
            assert (await grpc_form.call("ModelInfer", numbers(1, 2)))[0] == Code.RESOURCE_EXHAUSTED
            assert grpc_form.trailing["retry-after"] == "1"
            grpc_form.go_on.set()
            assert "outputs" in await first

    asyncio.run(go())


def test_connections_and_calls_and_their_rate_are_limited() -> None:
    async def go() -> None:
        async with served(max_connections=1) as grpc_form:
            grpc_form.go_on.clear()
            first = asyncio.create_task(grpc_form.call("ModelInfer", numbers(1, 2)))
            await grpc_form.begun.wait()
            assert (await grpc_form.call("ServerLive"))[0] == Code.RESOURCE_EXHAUSTED
            reader, writer = await asyncio.open_connection("127.0.0.1", grpc_form.port)
            assert await reader.read(1) == b""
            writer.close()
            grpc_form.go_on.set()
            assert "outputs" in await first
        async with served(rate=0.01) as grpc_form:
            assert "outputs" in await grpc_form.call("ModelInfer", numbers(1, 2))
            assert (await grpc_form.call("ModelInfer", numbers(1, 2)))[0] == Code.RESOURCE_EXHAUSTED
            assert int(grpc_form.trailing["retry-after"]) > 1

    asyncio.run(go())


def test_the_request_of_a_caller_that_leaves_goes_on() -> None:
    async def go() -> None:
        async with served() as grpc_form:
            grpc_form.go_on.clear()
            content = MESSAGES["ModelInferRequest"](**numbers(1, 2)).SerializeToString()
            running = grpc_form.channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer")(content)
            await grpc_form.begun.wait()
            (request,) = grpc_form.requests
            running.cancel()
            while grpc_form.server._calls:  # the server has learned of it
                await asyncio.sleep(0.01)
            grpc_form.go_on.set()
            await request
            assert grpc_form.answered == [3]
            assert grpc_form.statuses[-1][1] == 200

    asyncio.run(go())


def test_the_end_waits_for_calls_but_not_for_those_that_watch_the_health() -> None:
    async def go() -> None:
        async with served(grace_seconds=300) as grpc_form:
            grpc_form.go_on.clear()
            health = health_pb2_grpc.HealthStub(grpc_form.channel)
            asked = health_pb2.HealthCheckRequest(service=SERVICE.full_name)
            assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
            watching = health.Watch(asked)
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            call = asyncio.create_task(grpc_form.call("ModelInfer", numbers(1, 2)))
            await grpc_form.begun.wait()
            ending = asyncio.create_task(grpc_form.server.stop())
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert not ending.done()
            grpc_form.go_on.set()
            assert "outputs" in await call
            await ending
            assert (await grpc_form.call("ServerLive"))[0] == Code.UNAVAILABLE

    asyncio.run(go())


def test_a_call_that_takes_longer_than_the_grace_is_ended() -> None:
    async def go() -> None:
        async with served(grace_seconds=0) as grpc_form:
            grpc_form.go_on.clear()
            call = asyncio.create_task(grpc_form.call("ModelInfer", numbers(1, 2)))
            await grpc_form.begun.wait()
            await grpc_form.server.stop()
            assert (await call)[0] in (Code.UNAVAILABLE, Code.CANCELLED)
            grpc_form.go_on.set()

    asyncio.run(go())


def test_a_taken_port_is_an_error() -> None:
    async def go() -> None:
        with bind(HttpSettings(), grpc=True) as sock, refused("gRPC", "--grpc-port"):
            GrpcServer(FastAPI(), HttpSettings(), sock.getsockname()[1], set())

    asyncio.run(go())


def test_addresses_of_callers() -> None:
    assert _peer("ipv4:127.0.0.1:5000") == ("127.0.0.1", 5000)
    assert _peer("ipv6:%5B::1%5D:5000") == ("::1", 5000)
    assert _peer("unix:") == ("", 0)
