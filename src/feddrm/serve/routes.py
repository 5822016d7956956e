"""The gateway's paths: route and predict, each also in the Open Inference Protocol's form, administration, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from feddrm.errors import FeddrmError
from feddrm.serve.gateway import Gateway, RequestContext
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.decode import Array, check_samples, read_samples
from feddrm.serve.http.error_responses import ERROR_RESPONSES, ApiError, json_response
from feddrm.serve.http.openapi import sample_body
from feddrm.serve.loaded_router import Decisions
from feddrm.serve.oip.oip_routes import Outputs, Tensors, add_oip_routes, answer_infer
from feddrm.serve.schemas import (
    Options,
    PredictAnswer,
    PredictOptions,
    PredictRequest,
    RouteAnswer,
    RouteRequest,
    SchemaAnswer,
)
from feddrm.serve.upstream.dispatch import ClassProbabilities, SampleAnswers

MODELS = {"router": "route", "federation": "predict"}  # of the Open Inference Protocol: model and action


def add_query_routes(app: FastAPI, gateway: Gateway) -> None:
    """The paths that answer queries."""

    @app.post("/v1/route", responses={200: {"model": RouteAnswer}, **ERROR_RESPONSES},
              openapi_extra=sample_body(RouteRequest, Options))  # fmt: skip
    async def route(request: Request) -> Response:
        """Rank the clients for every sample; says whether the router abstains and why."""
        context = gateway.begin(request, "route")
        kind, x, options = await read_samples(request, gateway.settings, context.router.spec, Options)
        decisions = await gateway.decide(context, kind, x, options)
        gateway.record(context, decisions)
        return _answer(context, "decisions", _routed(gateway, context, decisions))

    @app.post("/v1/predict", responses={200: {"model": PredictAnswer}, **ERROR_RESPONSES},
              openapi_extra=sample_body(PredictRequest, PredictOptions))  # fmt: skip
    async def predict(request: Request) -> Response:
        """Route, then ask the chosen client (or the best k); where one fails, ask the next."""
        context = gateway.begin(request, "predict")
        kind, x, options = await read_samples(request, gateway.settings, context.router.spec, PredictOptions)
        return _answer(context, "answers", await _predictions(gateway, context, kind, x, options))

    @app.get("/v1/schema", responses={200: {"model": SchemaAnswer}})
    async def schema() -> Response:
        """The raw columns of a table's row, for whoever asks: names, units, categories, ranges. It needs no key."""
        loaded = gateway.router
        described = loaded.spec.schema
        return json_response(
            {
                "artifact": loaded.version,
                "schema": None if described is None else described.as_dict(),
                "inputs": None if loaded.spec.columns is None else list(loaded.spec.columns),
                "examples": [] if described is None else described.examples(),
            }
        )

    async def infer(request: Request) -> Response:
        action = MODELS[request.path_params["model"]]
        context = gateway.begin(request, action)

        async def compute(kind: str, x: Array) -> Outputs:
            x = check_samples(kind, x, context.router.spec)
            if action == "route":
                return await _decision_arrays(gateway, context, kind, x)
            answers = await _predictions(gateway, context, kind, x, PredictOptions())
            return {
                "probabilities": np.array([list(answer["probabilities"].values()) for answer in answers]),
                "label": [answer["label"] for answer in answers],
                "client": [answer["client"] for answer in answers],
                "flags": _json_texts([answer["route"]["flags"] for answer in answers]),
            }

        return await answer_infer(request, gateway.settings, context.router.version, compute)

    def describe(model: str) -> tuple[str, Tensors, Tensors]:
        loaded, classes = gateway.router, len(gateway.classes)
        spec, clients = loaded.spec, len(loaded.names)
        inputs = [
            ("input", "UINT8" if spec.is_image else "FP32", [-1, *spec.shape]),
            ("features", "FP32", [-1, spec.features]),
        ]
        routed = [
            ("probabilities", "FP32", [-1, clients]), ("log_density_ratio", "FP32", [-1, clients]),
            ("client", "BYTES", [-1]), ("margin", "FP32", [-1]), ("abstain", "BOOL", [-1]), ("flags", "BYTES", [-1]),
        ]  # fmt: skip
        predicted = [("probabilities", "FP32", [-1, classes]), ("label", "BYTES", [-1]), ("client", "BYTES", [-1]),
                     ("flags", "BYTES", [-1])]  # fmt: skip
        return loaded.version, inputs, routed if model == "router" else predicted

    def ready() -> dict[str, Any]:
        if not gateway.ready:
            raise ApiError(503, "starting or stopping: try again in a while")
        return {"artifact": gateway.router.version}

    add_administration_routes(app, gateway)
    add_oip_routes(app, tuple(MODELS), describe=describe, ready=ready, infer=infer)


def add_administration_routes(app: FastAPI, gateway: Gateway) -> None:
    """The paths that need the scope ``admin``."""

    @app.post("/v1/admin/reload", responses=ERROR_RESPONSES)
    async def reload(request: Request) -> Response:
        """Read the artifact again; if it is broken, the old one stays, and the error says why."""
        authorise(request, gateway.keys, "admin")
        try:
            loaded = await gateway.reload()
        except FeddrmError as error:
            raise ApiError(422, f"the old artifact stays: {error}") from error
        return json_response({"artifact": loaded.version, "clients": list(loaded.names)})

    @app.get("/v1/clients", responses=ERROR_RESPONSES)
    async def clients(request: Request) -> Response:
        """Health, circuit and load of every registered client."""
        authorise(request, gateway.keys, "admin")
        return json_response({"clients": [upstream.as_dict() for upstream in gateway.upstreams.values()]})

    @app.get("/metrics", response_class=PlainTextResponse, responses=ERROR_RESPONSES)
    async def metrics(request: Request) -> Response:
        """The metrics, in the format of Prometheus."""
        authorise(request, gateway.keys, "admin")
        for upstream in gateway.upstreams.values():
            gateway.metrics.available.labels(upstream.name).set(upstream.available)
            gateway.metrics.circuit.labels(upstream.name).set(upstream.circuit == "open")
        gateway.metrics.waiting_rows.set(gateway.router.batcher.waiting)
        gateway.metrics.audit_ok.set(gateway.audit.trouble is None)
        return Response(gateway.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _answer(context: RequestContext, name: str, samples: list[dict[str, Any]]) -> Response:
    return json_response({"request_id": context.request_id, "artifact": context.router.version, name: samples})


async def _decision_arrays(gateway: Gateway, context: RequestContext, kind: str, x: Array) -> Outputs:
    """Decisions as arrays: the form for many samples."""
    decisions = await gateway.decide(context, kind, x, Options())
    gateway.record(context, decisions)
    names = [*context.router.names, ""]  # the client number -1 means nobody
    return {
        "probabilities": decisions.probabilities,
        "log_density_ratio": decisions.log_density_ratio,
        "client": [names[client] for client in decisions.client.tolist()],
        "margin": decisions.margin,
        "abstain": decisions.abstain,
        "flags": _json_texts(decisions.flag_lists),
    }


def _json_texts(values: Sequence[Any]) -> list[str]:
    """Values as JSON texts: the protocol has no tensors of lists."""
    return [orjson.dumps(value).decode() for value in values]


async def _predictions(
    gateway: Gateway, context: RequestContext, kind: str, x: Array, options: PredictOptions
) -> list[dict[str, Any]]:
    """The answer to every sample, in the form of :class:`feddrm.serve.schemas.Predicted`."""
    if not gateway.upstreams:
        raise ApiError(503, "no clients are registered: start the gateway with --clients or --demo")
    decisions = await gateway.decide(context, kind, x, options)
    answers, error = await gateway.ask(context, kind, x, decisions, options)
    routed = _routed(gateway, context, decisions)
    mixtures = map(SampleAnswers.mixture, answers, decisions.rankings, decisions.probabilities.tolist())
    predicted = [
        _predicted(gateway, context, answer, mixture) | {"route": route}
        for answer, mixture, route in zip(answers, mixtures, routed, strict=True)
    ]
    gateway.record(context, decisions, answers, [sample["label"] for sample in predicted])
    if error is not None:  # raised only now: the audit log must have what was asked and answered
        raise error
    return predicted


def _routed(gateway: Gateway, context: RequestContext, decisions: Decisions) -> list[dict[str, Any]]:
    """The decision about every sample, in the form of :class:`feddrm.serve.schemas.Routed`."""
    names = context.router.names
    available = gateway.upstreams.available(names)
    columns = (decisions.client, decisions.probabilities, decisions.log_density_ratio, decisions.best,
               decisions.margin, decisions.abstain)  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), decisions.reason, decisions.rankings, decisions.flag_lists,
               strict=True)  # fmt: skip
    return [
        {
            "client": names[client] if client >= 0 else None,
            "probability": best,
            "margin": margin,
            "abstain": abstain,
            "reason": reason,
            "flags": flags,
            "ranked": [
                {
                    "client": names[c],
                    "probability": probabilities[c],
                    "log_density_ratio": ratios[c],
                    "available": available[c],
                }
                for c in ranking
            ],
        }
        for client, probabilities, ratios, best, margin, abstain, reason, ranking, flags in rows
    ]


def _predicted(
    gateway: Gateway,
    context: RequestContext,
    answers: SampleAnswers,
    mixture: tuple[ClassProbabilities, dict[int, float]] | None,
) -> dict[str, Any]:
    """The answer to one sample without its route, in the form of :class:`feddrm.serve.schemas.Predicted`."""
    names, classes = context.router.names, gateway.classes
    body: dict[str, Any] = {"label": None, "probabilities": None, "client": None, "answered": []}
    if mixture is not None:
        probabilities, weights = mixture
        body = {
            "label": classes[int(probabilities.argmax())],
            "probabilities": dict(zip(classes, probabilities.tolist(), strict=True)),
            "client": names[next(iter(weights))],
            "answered": [
                {"client": names[c], "weight": weight, "milliseconds": round(answers.milliseconds[c], 3)}
                for c, weight in weights.items()
            ],
        }
    return body | {"failed": [{"client": names[c], "reason": reason} for c, reason in answers.failed.items()]}
