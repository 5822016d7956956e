"""The paths of the Open Inference Protocol, version 2, for both gateway and predictor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from starlette.responses import Response

from feddrm._version import __version__
from feddrm.serve.http.decode import SMALL_JSON, Array, in_decoder, read_body
from feddrm.serve.http.error_responses import ERROR_RESPONSES, ApiError, json_response
from feddrm.serve.http.openapi import json_body
from feddrm.serve.oip.codec import (
    LENGTH_HEADER,
    InferAnswer,
    InferRequest,
    ModelAbout,
    ServerAbout,
    json_length,
    read_infer,
    single_input,
    write_answer,
)
from feddrm.serve.schemas import ErrorAnswer
from feddrm.serve.settings import HttpSettings
from feddrm.serve.telemetry.tracing import span

Tensors = Sequence[tuple[str, str, Sequence[int]]]  # name, datatype, shape
Outputs = dict[str, Array | list[str]]
MODEL = "the name of a model"
ModelName = Annotated[str, Path(description=MODEL)]


async def answer_infer(
    request: Request,
    settings: HttpSettings,
    version: str,
    compute: Callable[[str, Array, Mapping[str, Any]], Awaitable[Outputs]],
) -> Response:
    """Read the tensor of an infer request, compute the outputs, and answer in the form that the caller wants.

    ``compute`` gets the kind of samples, the samples and the request's parameters.
    """
    body = await read_body(request, settings)
    length = request.headers.get(LENGTH_HEADER) or None
    with span("decode"):
        if json_length(body, length) > SMALL_JSON:  # tensors as bytes need no parsing
            infer_request, tensors = await in_decoder(read_infer, body, length, settings.max_rows)
        else:
            infer_request, tensors = read_infer(body, length, settings.max_rows)
    outputs = await compute(*single_input(tensors), infer_request.parameters)
    about = {"model_name": request.path_params["model"], "model_version": version}
    about["id"] = infer_request.id or request.scope["state"]["request_id"]
    content, headers = write_answer(about, outputs, infer_request)
    return Response(content, headers=headers)


def add_oip_routes(
    app: FastAPI,
    models: Sequence[str],
    *,
    describe: Callable[[str], tuple[str, Tensors, Tensors]],
    ready: Callable[[], dict[str, Any]],
    infer: Callable[[Request], Awaitable[Response]],
    problems: Mapping[int, str] | None = None,
) -> None:
    """Add all paths of the protocol.

    ``describe`` gives a model's version, inputs and outputs. ``ready`` gives additional fields of the answer to
    ``/v2/health/ready``, or raises an error. ``problems`` are statuses of ``infer`` besides the usual ones, and what
    they mean.
    """

    def check_model(model: str) -> None:
        if model not in models:
            raise ApiError(404, f"no model '{model[:64]}': there is {' and '.join(models)}")

    @app.get("/v2", responses={200: {"model": ServerAbout}})
    async def server() -> Response:
        """The server's name and version."""
        return json_response({"name": "feddrm", "version": __version__, "extensions": ["binary_tensor_data"]})

    @app.get("/v2/health/live")
    async def live() -> Response:
        """Whether the process runs."""
        return json_response({"live": True})

    @app.get("/v2/health/ready", responses={503: {"model": ErrorAnswer}})
    async def is_ready() -> Response:
        """Whether requests are answered."""
        return json_response({"ready": True, **ready()})

    @app.get("/v2/models/{model}/ready", responses={404: {"model": ErrorAnswer}, 503: {"model": ErrorAnswer}})
    async def model_ready(model: ModelName) -> Response:
        """Whether the model answers."""
        check_model(model)
        return await is_ready()

    @app.get("/v2/models/{model}", responses={200: {"model": ModelAbout}, 404: {"model": ErrorAnswer}})
    async def about(model: ModelName) -> Response:
        """A model's inputs and outputs."""
        check_model(model)
        version, inputs, outputs = describe(model)
        tensors = {
            side: [dict(zip(("name", "datatype", "shape"), tensor, strict=True)) for tensor in described]
            for side, described in (("inputs", inputs), ("outputs", outputs))
        }
        return json_response({"name": model, "versions": [version], "platform": "feddrm", **tensors})

    @app.api_route("/v2/models/{model}/versions/{rest:path}", methods=["GET", "POST"], include_in_schema=False)
    async def versioned(model: str, rest: str) -> Response:
        """The protocol lets callers name a version; here the server chooses."""
        check_model(model)
        version = rest.partition("/")[0][:64]
        raise ApiError(404, f"version '{version}' cannot be asked for: leave the version out, the answer states it")

    more: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": text} for status, text in (problems or {}).items()
    }
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    # FastAPI finds path parameters among the arguments of a function, and this one takes the request alone.
    names = {"type": "string", "enum": list(models)}
    parameter = {"name": "model", "in": "path", "required": True, "description": MODEL, "schema": names}

    @app.post(
        "/v2/models/{model}/infer",
        name="infer",
        responses={
            200: {"model": InferAnswer, "content": binary},
            404: {"model": ErrorAnswer},
            **ERROR_RESPONSES,
            **more,
        },
        openapi_extra=json_body(InferRequest) | {"parameters": [parameter]},
    )
    async def infer_known(request: Request) -> Response:
        """A model's outputs for samples, by the Open Inference Protocol: tensors as JSON or as bytes after it."""
        check_model(request.path_params["model"])
        return await infer(request)
