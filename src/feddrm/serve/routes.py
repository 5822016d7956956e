"""The gateway's paths that answer queries: route and predict, each also in the Open Inference Protocol's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import Response

from feddrm.errors import FeddrmError
from feddrm.predictor.predictor import named_sets
from feddrm.router.label_sets import check_label_miss, within_set
from feddrm.serve.gateway import Gateway
from feddrm.serve.http.decode import AnyOptions, Array, check_samples, options_in, read_samples
from feddrm.serve.http.error_responses import ERROR_RESPONSES, ApiError, json_response
from feddrm.serve.http.openapi import sample_body
from feddrm.serve.loaded_router import Decisions, RequestContext
from feddrm.serve.oip.codec import json_texts
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
from feddrm.serve.upstream.dispatch import Question, SampleAnswers

TERMS = 10  # of an explanation, the largest
MODELS = {"router": "route", "federation": "predict"}  # of the Open Inference Protocol: model and action


def add_query_routes(app: FastAPI, gateway: Gateway) -> None:
    """The paths that answer queries."""

    @app.post("/v1/route", responses={200: {"model": RouteAnswer}, **ERROR_RESPONSES},
              openapi_extra=sample_body(RouteRequest, Options))  # fmt: skip
    async def route(request: Request) -> Response:
        """Rank the clients for every sample; says whether the router abstains and why."""
        context = await gateway.begin(request, "route")
        kind, x, options = await read_samples(request, gateway.settings, context.router.spec, Options)
        decisions = await gateway.decide(context, kind, x, options)
        gateway.record(context, decisions)
        return _answer(context, "decisions", _routed(context, decisions, options.top))

    @app.post("/v1/predict", responses={200: {"model": PredictAnswer}, **ERROR_RESPONSES},
              openapi_extra=sample_body(PredictRequest, PredictOptions))  # fmt: skip
    async def predict(request: Request) -> Response:
        """Route, then ask the chosen client (or the best k); where one fails, ask the next."""
        context = await gateway.begin(request, "predict")
        kind, x, options = await read_samples(request, gateway.settings, context.router.spec, PredictOptions)
        return _answer(context, "answers", await _predictions(gateway, context, kind, x, options))

    async def infer(request: Request) -> Response:
        action = MODELS[request.path_params["model"]]
        context = await gateway.begin(request, action)

        async def compute(kind: str, x: Array, parameters: Mapping[str, Any]) -> Outputs:
            x = check_samples(kind, x, context.router.spec)
            if action == "route":
                return await _decision_arrays(gateway, context, kind, x, _array_options(parameters, Options))
            answers = await _predictions(gateway, context, kind, x, _array_options(parameters, PredictOptions))
            return _answer_arrays(answers, len(gateway.classes))

        return await answer_infer(request, gateway.settings, context.router.version, compute)

    def describe(model: str) -> tuple[str, Tensors, Tensors]:
        loaded, classes = gateway.router, len(gateway.classes)
        spec, clients = loaded.spec, len(loaded.names)
        inputs = [
            ("input", "UINT8" if spec.is_image else "FP32", [-1, *spec.shape]),
            ("features", "FP32", [-1, spec.features]),
        ]
        decided = [("client", "BYTES", [-1]), ("client_probability", "FP32", [-1]), ("abstain", "BOOL", [-1]),
                   ("reason", "BYTES", [-1]), ("fallback", "BOOL", [-1]), ("flags", "BYTES", [-1])]  # fmt: skip
        if model == "router":
            arrays = [(name, "FP32", [-1, clients]) for name in ("probabilities", "log_density_ratio")]
            return loaded.version, inputs, [*arrays, ("margin", "FP32", [-1]), *decided]
        answer = [
            ("probabilities", "FP32", [-1, classes]),
            ("label", "BYTES", [-1]),
            ("label_probability", "FP32", [-1]),
            ("label_set", "BYTES", [-1]),
        ]
        return loaded.version, inputs, [*answer, *decided]

    def ready() -> dict[str, Any]:
        if not gateway.ready:
            raise ApiError(503, "starting or stopping: try again in a while")
        return {"artifact": gateway.router.version}

    add_schema_route(app, gateway)
    add_oip_routes(app, tuple(MODELS), describe=describe, ready=ready, infer=infer)


def add_schema_route(app: FastAPI, gateway: Gateway) -> None:
    """The path that describes the raw columns of a table."""

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


def _answer(context: RequestContext, name: str, samples: list[dict[str, Any]]) -> Response:
    return json_response({"request_id": context.request_id, "artifact": context.router.version, name: samples})


def _array_options(parameters: Mapping[str, Any], model: type[AnyOptions]) -> AnyOptions:
    """The options of an infer request."""
    options = options_in(parameters, model)
    if options.why:
        raise FeddrmError("why=true: an explanation is no array: ask POST /v1/route")
    return options


async def _decision_arrays(gateway: Gateway, context: RequestContext, kind: str, x: Array, options: Options) -> Outputs:
    """Decisions as arrays: the form for many samples."""
    decisions = await gateway.decide(context, kind, x, options)
    gateway.record(context, decisions)
    names = [*context.router.names, ""]  # the client number -1 means nobody
    return {
        "probabilities": decisions.probabilities,
        "log_density_ratio": decisions.log_density_ratio,
        "margin": decisions.margin,
        "client": [names[client] for client in decisions.client.tolist()],
        "client_probability": decisions.client_probability,
        "abstain": decisions.abstain,
        "reason": list(decisions.reason),
        "fallback": np.array([bool(passed) for passed in decisions.passed_over]),
        "flags": json_texts(decisions.flag_lists),
    }


def _answer_arrays(answers: Sequence[Mapping[str, Any]], classes: int) -> Outputs:
    """Answers as arrays. What is withheld is an empty text or not a number, which JSON writes as null."""
    withheld = dict.fromkeys(range(classes), np.nan)
    return {
        "probabilities": np.array([list((answer["probabilities"] or withheld).values()) for answer in answers]),
        "label": [answer["label"] or "" for answer in answers],
        "label_probability": np.array([answer["label_probability"] for answer in answers], dtype=float),
        "label_set": json_texts([answer["label_set"] for answer in answers]),
        "client": [answer["client"] or "" for answer in answers],
        "client_probability": np.array([answer["client_probability"] for answer in answers], dtype=float),
        "abstain": np.array([answer["route"]["abstain"] for answer in answers]),
        "reason": [answer["route"]["reason"] for answer in answers],
        "fallback": np.array([answer["fallback"] for answer in answers]),
        "flags": json_texts([answer["route"]["flags"] for answer in answers]),
    }


async def _predictions(
    gateway: Gateway, context: RequestContext, kind: str, x: Array, options: PredictOptions
) -> list[dict[str, Any]]:
    """The answer to every sample, in the form of :class:`feddrm.serve.schemas.Predicted`."""
    if options.label_miss is not None:
        check_label_miss(options.label_miss, options.rule or gateway.settings.rule)
    if not gateway.upstreams:
        raise ApiError(503, "no clients are registered: start the gateway with --clients or --demo")
    decisions = await gateway.decide(context, kind, x, options)
    decisions, answers, error = await gateway.ask(context, kind, x, decisions, options)
    questions = map(Question, decisions.rankings, decisions.probabilities.tolist())
    predicted = [
        _predicted(gateway, context.router.names, answer, question, options.abstain == "answer" or not route["abstain"])
        | {"label_set": _label_set(gateway.classes, answer, question, None if route["abstain"] else options.label_miss)}
        | {"route": route}
        for answer, question, route in zip(answers, questions, _routed(context, decisions, options.top), strict=True)
    ]
    gateway.record(context, decisions, answers, [sample["label"] for sample in predicted])
    if error is not None:  # raised only now: the audit log must have what was asked and answered
        raise error
    if gateway.use_log is not None:
        gateway.use_log.record(context, decisions, predicted)
    return predicted


def _label_set(
    classes: Sequence[str], answers: SampleAnswers, question: Question, miss: float | None
) -> list[str] | None:
    """The labels that one sample may have; None without a requested miss, or where too few clients answered."""
    p_values = None if miss is None else answers.mixed_p_values(question.probabilities)
    if miss is None or p_values is None:
        return None
    return named_sets(within_set(p_values, miss), classes)[0]


def _routed(context: RequestContext, decisions: Decisions, top: int | None) -> list[dict[str, Any]]:
    """The decision about every sample, in the form of :class:`feddrm.serve.schemas.Routed`."""
    names, right, explanation = context.router.names, decisions.right_probability, decisions.explanation
    columns = (decisions.client, decisions.client_probability, decisions.margin, decisions.abstain)
    rows = zip(
        *(column.tolist() for column in columns),
        decisions.reason,
        decisions.passed_over,
        decisions.flag_lists,
        [None] * len(decisions.client) if right is None else right.tolist(),
        [None] * len(decisions.client) if explanation is None else explanation.as_dicts(TERMS),
        *_likeliest(names, decisions, top),
        strict=True,
    )
    return [
        {
            "client": names[client] if client >= 0 else None,
            "client_probability": own,
            "margin": margin,
            "abstain": abstain,
            "reason": reason,
            "flags": flags,
            "right_probability": right,
            "fallback": client >= 0 and bool(passed_over),
            "away": away,
            "ranked": ranked,
            "why": why,
        }
        for client, own, margin, abstain, reason, passed_over, flags, right, why, ranked, away in rows
    ]


def _likeliest(
    names: Sequence[str], decisions: Decisions, top: int | None
) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    """The likeliest clients of every sample, and the likeliest of those that are away."""
    away, number = decisions.away, decisions.shown(top)
    best = decisions.best(number)
    values = (best, np.take_along_axis(decisions.probabilities, best, 1), decisions.log_density_ratio_of(best))
    ranked = [
        [
            {"client": names[c], "probability": p, "log_density_ratio": ratio, "available": c not in away}
            for c, p, ratio in zip(*row, strict=True)
        ]
        for row in zip(*(value.tolist() for value in values), strict=True)
    ]
    if not away:
        return ranked, [[] for _ in ranked]
    missing = zip(decisions.best(number, away).tolist(), decisions.probabilities, strict=True)
    return ranked, [
        [{"client": names[c], "reason": away[c], "probability": float(p[c])} for c in clients] for clients, p in missing
    ]


def _predicted(
    gateway: Gateway, names: Sequence[str], answers: SampleAnswers, question: Question, shown: bool
) -> dict[str, Any]:
    """The answer to one sample without its route, in the form of :class:`feddrm.serve.schemas.Predicted`."""
    classes, mixture = gateway.classes, answers.mixture(question.ranking, question.probabilities)
    body: dict[str, Any] = {
        "label": None, "label_probability": None, "label_set": None, "client": None, "client_probability": None,
        "probabilities": None, "fallback": False, "answered": [],
        "failed": [{"client": names[c], "reason": reason} for c, reason in answers.failed.items()],
    }  # fmt: skip
    if mixture is None:
        return body
    mixed, weights = mixture
    body["answered"] = [
        {"client": names[c], "weight": weight, "milliseconds": round(answers.milliseconds[c], 3)}
        for c, weight in weights.items()
    ]
    if shown:
        best, client = int(mixed.argmax()), next(iter(weights))
        own = question.probabilities[client]
        body |= {
            "label": classes[best],
            "label_probability": float(mixed[best]),
            "client": names[client],
            "client_probability": own,
            "probabilities": dict(zip(classes, mixed.tolist(), strict=True)),
            "fallback": own < question.probabilities[question.ranking[0]],
        }
    return body
