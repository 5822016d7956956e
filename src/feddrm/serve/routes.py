"""The gateway's paths: route, predict, the Open Inference Protocol's form of both, administration, figures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from feddrm.errors import FeddrmError
from feddrm.serve.http.decode import Array, check
from feddrm.serve.http.error_responses import REFUSALS, Refusal, answer_json
from feddrm.serve.http.fast_routes import Direct, authorise, takes
from feddrm.serve.loaded_router import LoadedRouter, Row
from feddrm.serve.oip.oip_routes import Outputs, Tensors, add_protocol, answer_infer
from feddrm.serve.schemas import Options, PredictAnswer, PredictOptions, PredictRequest, RouteAnswer, RouteRequest
from feddrm.serve.upstream.dispatch import Outcome

if TYPE_CHECKING:
    from feddrm.serve.gateway import Gateway

MODELS = {"router": "route", "federation": "predict"}
Shortcut = dict[str, tuple[Direct, dict[str, str]]]


def add_pages(app: FastAPI, gateway: Gateway) -> Shortcut:
    """Every path but the console's; returns the shortcuts to those on which speed counts."""

    async def route(request: Request) -> Response:
        """Which clients should answer: ranked, with the reasons to doubt it."""
        authorise(request, gateway.keys, "route")
        began, holding = time.perf_counter(), gateway.holding
        kind, x, options = await gateway.read(request, holding, Options)
        decided = await gateway.decide(holding, kind, x, options)
        gateway.note(request, "route", holding, decided, began)
        asked = gateway.registry.available(holding.router.names)
        return answer_json(
            {
                "request_id": request.scope["state"]["request_id"],
                "artifact": holding.version,
                "decisions": [told(row, holding.router.names, asked) for row in decided.rows()],
            }
        )

    async def predict(request: Request) -> Response:
        """Route, ask the chosen client (or the best k), fall back to the next where one fails."""
        authorise(request, gateway.keys, "predict")
        began, holding = time.perf_counter(), gateway.holding
        kind, x, options = await gateway.read(request, holding, PredictOptions)
        answers = await _predictions(gateway, request, holding, kind, x, options, began)
        about = {"request_id": request.scope["state"]["request_id"], "artifact": holding.version}
        return answer_json({**about, "answers": answers})

    async def infer(request: Request) -> Response:
        action = MODELS[request.path_params["model"]]
        authorise(request, gateway.keys, action)
        began, holding = time.perf_counter(), gateway.holding

        async def work(kind: str, x: Array) -> Outputs:
            x = check(kind, x, holding.wanted)
            if action == "route":
                return await _arrays(gateway, request, holding, kind, x, began)
            answers = await _predictions(gateway, request, holding, kind, x, PredictOptions(), began)
            return {
                "probabilities": np.array([list(answer["probabilities"].values()) for answer in answers]),
                "label": [answer["label"] for answer in answers],
                "client": [answer["client"] for answer in answers],
            }

        return await answer_infer(request, gateway.settings, holding.version, work)

    def describe(model: str) -> tuple[str, Tensors, Tensors]:
        holding = gateway.holding
        wanted, clients, classes = holding.wanted, len(holding.router.names), len(gateway.classes)
        inputs = [
            ("input", "UINT8" if wanted.is_image else "FP32", [-1, *wanted.shape]),
            ("features", "FP32", [-1, wanted.features]),
        ]
        routed = [
            ("probabilities", "FP32", [-1, clients]), ("log_density_ratio", "FP32", [-1, clients]),
            ("client", "BYTES", [-1]), ("margin", "FP32", [-1]), ("abstain", "BOOL", [-1]),
        ]  # fmt: skip
        predicted = [("probabilities", "FP32", [-1, classes]), ("label", "BYTES", [-1]), ("client", "BYTES", [-1])]
        return holding.version, inputs, routed if model == "router" else predicted

    def ready() -> dict[str, Any]:
        if not gateway.ready:
            raise Refusal(503, "starting or stopping: try again in a while")
        return {"artifact": gateway.holding.version}

    routes = [
        Direct("/v1/route", route, responses={200: {"model": RouteAnswer}, **REFUSALS},
               openapi_extra=takes(RouteRequest, Options)),
        Direct("/v1/predict", predict, responses={200: {"model": PredictAnswer}, **REFUSALS},
               openapi_extra=takes(PredictRequest, PredictOptions)),
    ]  # fmt: skip
    app.router.routes += routes
    _add_administration(app, gateway)
    shortcuts = add_protocol(app, tuple(MODELS), describe=describe, ready=ready, infer=infer)
    return {**shortcuts, **{route.path: (route, {}) for route in routes}}


def _add_administration(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/admin/reload", responses=REFUSALS)
    async def reload(request: Request) -> Response:
        """Read the artifact anew; if it is broken, the old one stays and this says why."""
        authorise(request, gateway.keys, "admin")
        try:
            found = await gateway.reload()
        except FeddrmError as error:
            raise Refusal(422, f"the old artifact stays: {error}") from error
        return answer_json({"artifact": found.version, "clients": list(found.router.names)})

    @app.get("/v1/clients", responses=REFUSALS)
    async def clients(request: Request) -> Response:
        """Health, circuit and load of every registered client."""
        authorise(request, gateway.keys, "admin")
        return answer_json({"clients": [peer.as_dict() for peer in gateway.registry.peers.values()]})

    @app.get("/metrics", response_class=PlainTextResponse, responses=REFUSALS)
    async def metrics(request: Request) -> Response:
        """For Prometheus."""
        authorise(request, gateway.keys, "admin")
        for peer in gateway.registry.peers.values():
            gateway.metrics.available.labels(peer.name).set(peer.available)
            gateway.metrics.circuit.labels(peer.name).set(peer.circuit == "open")
        gateway.metrics.waiting_rows.set(gateway.holding.batcher.waiting)
        gateway.metrics.audit_ok.set(gateway.audit.trouble is None)
        return Response(gateway.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _arrays(
    gateway: Gateway, request: Request, holding: LoadedRouter, kind: str, x: Array, began: float
) -> Outputs:
    """Decisions as arrays: the form for many samples."""
    decided = await gateway.decide(holding, kind, x, Options())
    gateway.note(request, "route", holding, decided, began)
    names = [*holding.router.names, ""]  # the last, at -1, is nobody's
    return {
        "probabilities": decided.probabilities,
        "log_density_ratio": decided.ratios,
        "client": [names[client] for client in decided.client.tolist()],
        "margin": decided.margin,
        "abstain": decided.abstain,
    }


async def _predictions(
    gateway: Gateway,
    request: Request,
    holding: LoadedRouter,
    kind: str,
    x: Array,
    options: PredictOptions,
    began: float,
) -> list[dict[str, Any]]:
    if not gateway.registry.peers:
        raise Refusal(503, "no clients are registered: start the gateway with --clients or --demo")
    decided = await gateway.decide(holding, kind, x, options)
    rows = decided.rows()
    outcomes, refusal = await gateway.ask(holding, kind, x, rows, options)
    asked = gateway.registry.available(holding.router.names)
    answers = [predicted(*pair, holding.router.names, gateway.classes, asked)
               for pair in zip(rows, outcomes, strict=True)]  # fmt: skip
    gateway.note(request, "predict", holding, decided, began, outcomes, [answer["label"] for answer in answers])
    if refusal is not None:  # only now: what was asked and answered belongs into the audit log all the same
        raise refusal
    return answers


def told(row: Row, names: tuple[str, ...], asked: tuple[bool, ...]) -> dict[str, Any]:
    """A decision as it is answered."""
    return {
        "client": names[row.client] if row.client >= 0 else None,
        "probability": max(row.probabilities),
        "margin": row.margin,
        "abstain": row.abstain,
        "reason": row.reason,
        "ranked": [
            {
                "client": names[c],
                "probability": row.probabilities[c],
                "log_density_ratio": row.ratios[c],
                "available": asked[c],
            }
            for c in row.order(range(len(names)))
        ],
    }


def predicted(
    row: Row, outcome: Outcome, names: tuple[str, ...], classes: tuple[str, ...], asked: tuple[bool, ...]
) -> dict[str, Any]:
    """A prediction as it is answered."""
    found = outcome.mixture(row)
    answer: dict[str, Any] = {"label": None, "probabilities": None, "client": None, "answered": []}
    if found is not None:
        mixed, weights = found
        answer = {
            "label": classes[int(mixed.argmax())],
            "probabilities": dict(zip(classes, mixed.tolist(), strict=True)),
            "client": names[next(iter(weights))],
            "answered": [
                {"client": names[c], "weight": weight, "milliseconds": round(outcome.milliseconds[c], 3)}
                for c, weight in weights.items()
            ],
        }
    failed = [{"client": names[c], "reason": reason} for c, reason in outcome.failed.items()]
    return {**answer, "failed": failed, "route": told(row, names, asked)}
