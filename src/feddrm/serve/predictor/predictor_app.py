"""The predictor as an application: the Open Inference Protocol, version 2, for one model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from feddrm._version import __version__
from feddrm.engine.kernels import largest_product
from feddrm.errors import FeddrmError
from feddrm.serve.auth import Keys
from feddrm.serve.batching import Batcher
from feddrm.serve.http.decode import Array, Wanted, check
from feddrm.serve.http.error_responses import Refusal, install_errors
from feddrm.serve.http.fast_routes import Shortcuts, authorise
from feddrm.serve.http.middleware import Guard
from feddrm.serve.oip.oip_routes import Outputs, Tensors, add_protocol, answer_infer
from feddrm.serve.predictor.predictor import Predictor
from feddrm.serve.settings import PredictorSettings
from feddrm.threads import without_onednn_if_small


def build_predictor(predictor: Predictor, settings: PredictorSettings) -> ASGIApp:
    """The application of one client."""
    keys = None if settings.keys is None else Keys(settings.keys)
    router, classes = predictor.router, predictor.classes
    wanted = Wanted(router.shape, router.weight.shape[1], None, settings.max_rows, settings.max_pixels)
    largest = 0 if predictor.head.net is None else largest_product(predictor.head.net, settings.max_batch_rows)

    def work(queries: Sequence[tuple[str, Array]]) -> list[Array]:
        with without_onednn_if_small(largest):
            return predictor(queries)

    batcher: Batcher[tuple[str, Array], Array] = Batcher(
        work, batch_rows=settings.max_batch_rows, waiting_rows=settings.max_waiting_rows
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

    def describe(_: str) -> tuple[str, Tensors, Tensors]:
        inputs = [("input", "UINT8" if wanted.is_image else "FP32", [-1, *wanted.shape])]
        if predictor.takes_features:
            inputs.append(("features", "FP32", [-1, wanted.features]))
        return predictor.version, inputs, [("probabilities", "FP32", [-1, len(classes)]), ("label", "BYTES", [-1])]

    def ready() -> dict[str, Any]:
        """With the names of its classes, for the gateway to compare with its own."""
        if not state["ready"]:
            raise Refusal(503, "starting or stopping: try again in a while")
        return {"classes": list(classes)} if predictor.named else {}

    async def answer(kind: str, x: Array) -> Outputs:
        if kind == "features" and not predictor.takes_features:
            raise FeddrmError("this client's head looks at more than the router's features: send the sample itself")
        found = await batcher((kind, check(kind, x, wanted)), len(x))
        return {"probabilities": found, "label": [classes[i] for i in found.argmax(1).tolist()]}

    async def infer(request: Request) -> Response:
        authorise(request, keys, "predict")
        return await answer_infer(request, settings, predictor.version, answer)

    shortcuts = add_protocol(app, (predictor.name,), describe=describe, ready=ready, infer=infer)
    return Guard(Shortcuts(app, shortcuts), settings)
