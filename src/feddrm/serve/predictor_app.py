"""The predictor as an application: the Open Inference Protocol, version 2, for one model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp
from torch import Tensor

from feddrm import __version__
from feddrm.errors import FeddrmError
from feddrm.serve.batching import Batcher
from feddrm.serve.guard import Guard, Refusal, answer_json, authorise, install_errors, read_body
from feddrm.serve.inference import HEADER, InferAnswer, InferRequest, ModelAbout, ServerAbout, read_infer, write_answer
from feddrm.serve.keys import Keys
from feddrm.serve.messages import ErrorAnswer
from feddrm.serve.pages import REFUSALS, takes
from feddrm.serve.predictor import Predictor
from feddrm.serve.reading import Wanted, check
from feddrm.serve.settings import PredictorSettings


def build_predictor(predictor: Predictor, settings: PredictorSettings) -> ASGIApp:
    """The application of one client."""
    keys = None if settings.keys is None else Keys.read(settings.keys)
    router, classes = predictor.router, predictor.classes
    wanted = Wanted(router.shape, router.weight.shape[1], None, settings.max_rows, settings.max_pixels)
    batcher: Batcher[tuple[str, Tensor], Tensor] = Batcher(
        predictor, batch_rows=settings.max_batch_rows, waiting_rows=settings.max_waiting_rows
    )
    state = {"ready": False}

    @contextlib.asynccontextmanager
    async def serving(_: FastAPI) -> AsyncIterator[None]:
        state["ready"] = True
        yield
        state["ready"] = False

    app = FastAPI(
        title=f"feddrm client {predictor.name}", version=__version__, lifespan=serving, docs_url=None, redoc_url=None
    )
    install_errors(app)

    def known(model: str) -> None:
        if model != predictor.name:
            raise Refusal(404, f"no model of this name: there is {predictor.name}")

    @app.get("/v2", responses={200: {"model": ServerAbout}})
    async def server() -> Response:
        """The server's name and version."""
        return answer_json({"name": "feddrm", "version": __version__, "extensions": ["binary_tensor_data"]})

    @app.get("/v2/health/live")
    async def live() -> Response:
        """Whether the process runs."""
        return answer_json({"live": True})

    @app.get("/v2/health/ready", responses={503: {"model": ErrorAnswer}})
    async def ready() -> Response:
        """Whether requests are answered."""
        if not state["ready"]:
            raise Refusal(503, "starting or stopping")
        return answer_json({"ready": True})

    @app.get("/v2/models/{model}/ready", responses={404: {"model": ErrorAnswer}})
    async def model_ready(model: str) -> Response:
        """Whether the model answers."""
        known(model)
        return await ready()

    @app.get("/v2/models/{model}", responses={200: {"model": ModelAbout}, 404: {"model": ErrorAnswer}})
    async def about(model: str) -> Response:
        """The model's inputs and outputs."""
        known(model)
        inputs = [{"name": "input", "datatype": "UINT8" if wanted.is_image else "FP32", "shape": [-1, *wanted.shape]}]
        if predictor.takes_features:
            inputs.append({"name": "features", "datatype": "FP32", "shape": [-1, wanted.features]})
        return answer_json(
            {
                "name": model,
                "versions": [predictor.version],
                "platform": "feddrm",
                "inputs": inputs,
                "outputs": [
                    {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(classes)]},
                    {"name": "label", "datatype": "BYTES", "shape": [-1]},
                ],
            }
        )

    @app.post(
        "/v2/models/{model}/infer",
        responses={200: {"model": InferAnswer}, 404: {"model": ErrorAnswer}, **REFUSALS},
        openapi_extra=takes(InferRequest),
    )
    async def infer(model: str, request: Request) -> Response:
        """Class probabilities and the likeliest label of every sample."""
        authorise(request, keys, "predict")
        known(model)
        body = await read_body(request, settings.max_body_bytes)
        asked, tensors = read_infer(body, request.headers.get(HEADER))
        kind = {"input": "inputs", "features": "features"}.get(next(iter(tensors)))
        if len(tensors) != 1 or kind is None:
            raise FeddrmError("give one tensor, named 'input' or 'features'")
        if kind == "features" and not predictor.takes_features:
            raise FeddrmError("this client's head looks at more than the router's features: send the sample itself")
        x = check(kind, next(iter(tensors.values())), wanted)
        found = await batcher((kind, x), len(x))
        labels = [classes[i] for i in found.argmax(1).tolist()]
        outputs = [
            {"name": "probabilities", "datatype": "FP32", "shape": list(found.shape), "data": found.flatten().tolist()},
            {"name": "label", "datatype": "BYTES", "shape": [len(labels)], "data": labels},
        ]
        told = {"model_name": model, "model_version": predictor.version, "id": asked.id or request.state.request_id}
        content, headers = write_answer(told, outputs, asked.parameters.get("binary_data_output") is True)
        return Response(content, headers=headers)

    return Guard(app, settings)
