"""The gateway's paths: route, predict, the Open Inference Protocol's form of both, administration, figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from feddrm import __version__
from feddrm.errors import FeddrmError
from feddrm.serve.asking import Outcome
from feddrm.serve.guard import Refusal, answer_json, authorise, read_body
from feddrm.serve.holding import Holding, Row
from feddrm.serve.inference import InferAnswer, InferRequest, ModelAbout, ServerAbout, read_infer, write_answer
from feddrm.serve.messages import (
    ErrorAnswer,
    Options,
    PredictAnswer,
    PredictOptions,
    PredictRequest,
    RouteAnswer,
    RouteRequest,
)
from feddrm.serve.reading import IMAGES, check

if TYPE_CHECKING:
    from feddrm.serve.gateway import Gateway

MODELS = {"router": "route", "federation": "predict"}
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer, "description": text}
    for code, text in {
        401: "no valid API key", 403: "the key lacks the scope", 413: "the body is too long",
        415: "a kind of body that is not read", 422: "what was sent does not fit", 429: "too busy: see Retry-After",
        503: "no client answered",
    }.items()
}  # fmt: skip


def takes(model: type[BaseModel], options: type[BaseModel] | None = None) -> dict[str, Any]:
    """What OpenAPI shall say of a body that is read by hand: JSON, and where options are given, pictures and bytes."""
    content: dict[str, Any] = {"application/json": {"schema": _inlined(model.model_json_schema())}}
    parameters = []
    if options is not None:
        binary = {"schema": {"type": "string", "format": "binary"}}
        content |= dict.fromkeys((*IMAGES, "application/octet-stream"), binary)
        parameters = [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in {
                "kind": {"type": "string", "enum": ["inputs", "features"]},
                "datatype": {"type": "string", "enum": ["uint8", "float32"]},
                "rule": {"type": "string", "enum": ["density", "posterior"]},
                "coverage": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                **({"consult": {"type": "integer", "minimum": 1, "maximum": 1024},
                    "abstain": {"type": "string", "enum": ["mark", "refuse"]}}
                   if options is PredictOptions else {}),
            }.items()
        ]  # fmt: skip
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references: the definitions are small, and each stands where it is used."""
    known = schema.get("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return walk(known[value["$ref"].rpartition("/")[2]])
            return {key: walk(inner) for key, inner in value.items() if key != "$defs"}
        return [walk(inner) for inner in value] if isinstance(value, list) else value

    found: dict[str, Any] = walk(schema)
    return found


class Direct(APIRoute):
    """A path whose function takes the request and nothing else: FastAPI documents it, and is passed by when it runs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            answer: Response = await endpoint(request)
            return answer

        return handle


def add_pages(app: FastAPI, gateway: Gateway) -> None:
    """Every path but the console's."""
    limit = gateway.settings.max_body_bytes
    direct = APIRouter(route_class=Direct)

    @direct.post(
        "/v1/route", responses={200: {"model": RouteAnswer}, **REFUSALS}, openapi_extra=takes(RouteRequest, Options)
    )
    async def route(request: Request) -> Response:
        """Which clients should answer: ranked, with the reasons to doubt it."""
        authorise(request, gateway.keys, "route")
        began, holding = time.perf_counter(), gateway.holding
        kind, x, options = await gateway.read(request, holding, Options)
        rows = await gateway.decide(holding, kind, x, options)
        gateway.note(request, "route", holding, rows, began=began)
        return answer_json(
            {
                "request_id": request.state.request_id,
                "artifact": holding.version,
                "decisions": [told(row, holding, gateway) for row in rows],
            }
        )

    @direct.post(
        "/v1/predict",
        responses={200: {"model": PredictAnswer}, **REFUSALS},
        openapi_extra=takes(PredictRequest, PredictOptions),
    )
    async def predict(request: Request) -> Response:
        """Route, ask the chosen client (or the best k), fall back to the next where one fails."""
        authorise(request, gateway.keys, "predict")
        began, holding = time.perf_counter(), gateway.holding
        kind, x, options = await gateway.read(request, holding, PredictOptions)
        rows = await gateway.decide(holding, kind, x, options)
        outcomes = await gateway.ask(holding, kind, x, rows, options)
        answers = [predicted(*pair, holding, gateway) for pair in zip(rows, outcomes, strict=True)]
        gateway.note(request, "predict", holding, rows, outcomes, [a["label"] for a in answers], began)
        return answer_json({"request_id": request.state.request_id, "artifact": holding.version, "answers": answers})

    app.include_router(direct)

    @app.post(
        "/v2/models/{model}/infer",
        responses={200: {"model": InferAnswer}, 404: {"model": ErrorAnswer}, **REFUSALS},
        openapi_extra=takes(InferRequest),
    )
    async def infer(model: str, request: Request) -> Response:
        """The same by the Open Inference Protocol: model ``router`` routes, model ``federation`` predicts."""
        action = known(model)
        authorise(request, gateway.keys, action)
        began, holding = time.perf_counter(), gateway.holding
        body = await read_body(request, limit)
        asked, tensors = await asyncio.to_thread(
            read_infer, body, request.headers.get("inference-header-content-length")
        )
        kind = {"input": "inputs", "features": "features"}.get(next(iter(tensors)))
        if len(tensors) != 1 or kind is None:
            raise FeddrmError("give one tensor, named 'input' or 'features'")
        x = check(kind, next(iter(tensors.values())), holding.wanted)
        rows = await gateway.decide(holding, kind, x, Options())
        names = holding.router.names
        chosen = [names[row.client] if row.client >= 0 else "" for row in rows]
        if action == "route":
            gateway.note(request, action, holding, rows, began=began)
            outputs = [
                _output("probabilities", "FP32", [len(x), len(names)], [p for row in rows for p in row.probabilities]),
                _output("client", "BYTES", [len(x)], chosen),
                _output("abstain", "BOOL", [len(x)], [row.abstain for row in rows]),
            ]
        else:
            options = PredictOptions()
            outcomes = await gateway.ask(holding, kind, x, rows, options)
            answers = [predicted(*pair, holding, gateway) for pair in zip(rows, outcomes, strict=True)]
            gateway.note(request, action, holding, rows, outcomes, [a["label"] for a in answers], began)
            outputs = [
                _output("probabilities", "FP32", [len(x), len(gateway.classes)],
                        [p for a in answers for p in a["probabilities"].values()]),
                _output("label", "BYTES", [len(x)], [a["label"] for a in answers]),
                _output("client", "BYTES", [len(x)], [a["client"] for a in answers]),
            ]  # fmt: skip
        about = {"model_name": model, "model_version": holding.version, "id": asked.id or request.state.request_id}
        content, headers = write_answer(about, outputs, asked.parameters.get("binary_data_output") is True)
        return Response(content, headers=headers)

    @app.get("/v2/models/{model}", responses={200: {"model": ModelAbout}, 404: {"model": ErrorAnswer}})
    async def about(model: str) -> Response:
        """A model's inputs and outputs."""
        action, holding = known(model), gateway.holding
        image = holding.wanted.is_image
        clients, classes = len(holding.router.names), len(gateway.classes)
        outputs = {
            "route": [("probabilities", "FP32", [-1, clients]), ("client", "BYTES", [-1]), ("abstain", "BOOL", [-1])],
            "predict": [("probabilities", "FP32", [-1, classes]), ("label", "BYTES", [-1]), ("client", "BYTES", [-1])],
        }[action]
        inputs = [
            ("input", "UINT8" if image else "FP32", [-1, *holding.wanted.shape]),
            ("features", "FP32", [-1, holding.wanted.features]),
        ]
        return answer_json(
            {
                "name": model,
                "versions": [holding.version],
                "platform": "feddrm",
                "inputs": [dict(zip(("name", "datatype", "shape"), tensor, strict=True)) for tensor in inputs],
                "outputs": [dict(zip(("name", "datatype", "shape"), tensor, strict=True)) for tensor in outputs],
            }
        )

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
        if not gateway.ready:
            raise Refusal(503, "starting or stopping")
        return answer_json({"ready": True, "artifact": gateway.holding.version})

    @app.get("/v2/models/{model}/ready", responses={404: {"model": ErrorAnswer}})
    async def model_ready(model: str) -> Response:
        """Whether the model answers."""
        known(model)
        return await ready()

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


def known(model: str) -> str:
    """What a model of the Open Inference Protocol does."""
    if model not in MODELS:
        raise Refusal(404, f"no model of this name: there are {' and '.join(MODELS)}")
    return MODELS[model]


def told(row: Row, holding: Holding, gateway: Gateway) -> dict[str, Any]:
    """A decision as it is answered."""
    names = holding.router.names
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
                "available": gateway.registry.can_answer(names[c]),
            }
            for c in row.order(range(len(names)))
        ],
    }


def predicted(row: Row, outcome: Outcome, holding: Holding, gateway: Gateway) -> dict[str, Any]:
    """A prediction as it is answered."""
    names, classes = holding.router.names, gateway.classes
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
    return {**answer, "failed": failed, "route": told(row, holding, gateway)}


def _output(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
