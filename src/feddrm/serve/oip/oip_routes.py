"""The paths of the Open Inference Protocol, version 2, alike for gateway and predictor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from feddrm._version import __version__
from feddrm.serve.http.decode import SMALL, Array
from feddrm.serve.http.error_responses import REFUSALS, Refusal, answer_json
from feddrm.serve.http.fast_routes import Direct, header, read_body, takes
from feddrm.serve.oip.codec import (
    HEADER,
    InferAnswer,
    InferRequest,
    ModelAbout,
    ServerAbout,
    json_length,
    read_infer,
    the_tensor,
    write_answer,
)
from feddrm.serve.schemas import ErrorAnswer
from feddrm.serve.settings import ServerSettings

Tensors = Sequence[tuple[str, str, Sequence[int]]]  # name, datatype, shape
Outputs = dict[str, Array | list[str]]


async def answer_infer(
    request: Request, settings: ServerSettings, version: str, work: Callable[[str, Array], Awaitable[Outputs]]
) -> Response:
    """Read a request's tensor, do the work, write the answer; numbers travel as the caller wants them."""
    body = await read_body(request, settings)
    length = header(request, HEADER.lower().encode()) or None
    if json_length(body, length) > SMALL:  # the bytes after it are no work
        asked, tensors = await asyncio.to_thread(read_infer, body, length)
    else:
        asked, tensors = read_infer(body, length)
    outputs = await work(*the_tensor(tensors))
    about = {"model_name": request.path_params["model"], "model_version": version}
    about["id"] = asked.id or request.scope["state"]["request_id"]
    content, headers = write_answer(about, outputs, asked)
    return Response(content, headers=headers)


def add_protocol(
    app: FastAPI,
    models: Sequence[str],
    *,
    describe: Callable[[str], tuple[str, Tensors, Tensors]],
    ready: Callable[[], dict[str, Any]],
    infer: Callable[[Request], Awaitable[Response]],
) -> dict[str, tuple[Direct, dict[str, str]]]:
    """Every path; returns the shortcuts to ``infer``. ``describe`` gives a model's version, inputs and outputs."""

    def known(model: str) -> None:
        if model not in models:
            raise Refusal(404, f"no model of this name: there is {' and '.join(models)}")

    @app.get("/v2", responses={200: {"model": ServerAbout}})
    async def server() -> Response:
        """The server's name and version."""
        return answer_json({"name": "feddrm", "version": __version__, "extensions": ["binary_tensor_data"]})

    @app.get("/v2/health/live")
    async def live() -> Response:
        """Whether the process runs."""
        return answer_json({"live": True})

    @app.get("/v2/health/ready", responses={503: {"model": ErrorAnswer}})
    async def is_ready() -> Response:
        """Whether requests are answered."""
        return answer_json({"ready": True, **ready()})

    @app.get("/v2/models/{model}/ready", responses={404: {"model": ErrorAnswer}, 503: {"model": ErrorAnswer}})
    async def model_ready(model: str) -> Response:
        """Whether the model answers."""
        known(model)
        return await is_ready()

    @app.get("/v2/models/{model}", responses={200: {"model": ModelAbout}, 404: {"model": ErrorAnswer}})
    async def about(model: str) -> Response:
        """A model's inputs and outputs."""
        known(model)
        version, inputs, outputs = describe(model)
        told = {
            side: [dict(zip(("name", "datatype", "shape"), tensor, strict=True)) for tensor in tensors]
            for side, tensors in (("inputs", inputs), ("outputs", outputs))
        }
        return answer_json({"name": model, "versions": [version], "platform": "feddrm", **told})

    async def checked(request: Request) -> Response:
        """What a model says of the samples: by the Open Inference Protocol, tensors as JSON or as bytes after it."""
        known(request.path_params["model"])
        return await infer(request)

    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    responses = {200: {"model": InferAnswer, "content": binary}, 404: {"model": ErrorAnswer}, **REFUSALS}
    route = Direct("/v2/models/{model}/infer", checked, name="infer", responses=responses,
                   openapi_extra=_with_model(takes(InferRequest), models))  # fmt: skip
    app.router.routes.append(route)
    return {f"/v2/models/{model}/infer": (route, {"model": model}) for model in models}


def _with_model(extra: dict[str, Any], models: Sequence[str]) -> dict[str, Any]:
    """FastAPI finds the path's parameters among the function's, and this one takes the request alone."""
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": list(models)}}
    return {**extra, "parameters": [model]}
