"""The predictor as an ASGI application: the Open Inference Protocol, version 2, for one client's model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from time import time_ns
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from feddrm.predictor.predictor import Predictor
from feddrm.router.answer_calibration import NO_SCORES
from feddrm.serve.access import Access
from feddrm.serve.batching import Batcher
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.decode import Array, InputSpec, check_samples, options_in
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.http.middleware import FastPaths, RequestMiddleware, new_application
from feddrm.serve.oip.codec import json_texts
from feddrm.serve.oip.oip_routes import Outputs, Tensors, add_oip_routes, answer_infer
from feddrm.serve.schemas import PredictorOptions
from feddrm.serve.settings import PredictorSettings
from feddrm.serve.telemetry.trace_setup import open_tracer
from feddrm.serve.telemetry.tracing import add_span
from feddrm.tasks import require_classes


def build_predictor(predictor: Predictor, settings: PredictorSettings) -> ASGIApp:
    """The application of one client."""
    require_classes(predictor.task, "a client's service", "answer queries with 'feddrm predict'")
    access = Access(settings)
    router, classes = predictor.router, predictor.classes
    spec = InputSpec(router.shape, router.weight.shape[1], None, settings.max_rows, settings.max_pixels)

    def compute(queries: Sequence[tuple[str, Array]]) -> list[tuple[Array, int, int]]:
        """The probabilities of every query, and when the pass began and ended."""
        began = time_ns()
        answers = predictor(queries)
        ended = time_ns()
        return [(answer, began, ended) for answer in answers]

    batcher: Batcher[tuple[str, Array], tuple[Array, int, int]] = Batcher(
        compute, batch_rows=settings.max_batch_rows, waiting_rows=settings.max_waiting_rows
    )
    state, tracer = {"ready": False}, open_tracer(settings, f"feddrm-client-{predictor.name}")

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await access.start()
        state["ready"] = True
        tracer.start()
        yield
        state["ready"] = False
        await asyncio.to_thread(tracer.close)

    app = new_application(f"feddrm client {predictor.name}", lifespan)

    def describe(_: str) -> tuple[str, Tensors, Tensors]:
        inputs = [("input", "UINT8" if spec.is_image else "FP32", [-1, *spec.shape])]
        if predictor.takes_features:
            inputs.append(("features", "FP32", [-1, spec.features]))
        outputs = [("probabilities", "FP32", [-1, len(classes)]), ("label", "BYTES", [-1])]
        sets = [("p_values", "FP32", [-1, len(classes)]), ("label_set", "BYTES", [-1])]  # with the parameter label_miss
        return predictor.version, inputs, [*outputs, *sets]

    def ready() -> dict[str, Any]:
        """The class names and the fit of the head, which the gateway compares with its own."""
        if not state["ready"]:
            raise ApiError(503, "starting or stopping: try again in a while")
        stated = {"classes": list(classes)} if predictor.named else {}
        return stated | ({} if predictor.fit is None else {"fit": predictor.fit})

    async def predict(kind: str, x: Array, parameters: Mapping[str, Any]) -> Outputs:
        miss = _label_miss(predictor, parameters)
        x = check_samples(kind, x, spec)
        if kind == "features":
            predictor.check_features(x)
        probabilities, began, ended = await batcher((kind, x), len(x))
        add_span("model", began, ended)
        labels = [classes[i] for i in probabilities.argmax(1).tolist()]
        return {"probabilities": probabilities, "label": labels, **_label_sets(predictor, probabilities, miss)}

    async def infer(request: Request) -> Response:
        await authorise(request, access, "predict")
        return await answer_infer(request, settings, predictor.version, predict)

    add_oip_routes(
        app, (predictor.name,), describe=describe, ready=ready, infer=infer, problems={409: "no scores for label sets"}
    )
    return RequestMiddleware(FastPaths(app, [f"/v2/models/{predictor.name}/infer"]), settings, tracer=tracer)


def _label_miss(predictor: Predictor, parameters: Mapping[str, Any]) -> float | None:
    miss = options_in(parameters, PredictorOptions).label_miss
    if miss is not None and predictor.head.calibration.scores is None:
        raise ApiError(409, f"client '{predictor.name}' has {NO_SCORES}")
    return miss


def _label_sets(predictor: Predictor, probabilities: Array, miss: float | None) -> Outputs:
    """The label sets of this client's own queries, and the p-values of which a gateway makes those of all clients."""
    if miss is None:
        return {}
    sets = predictor.label_sets(probabilities, miss)
    return {"p_values": predictor.p_values(probabilities), "label_set": json_texts(sets)}
