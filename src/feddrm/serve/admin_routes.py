"""The gateway's paths for those who operate it: artifacts, clients, metrics, and the outcomes of its answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from feddrm.errors import FeddrmError
from feddrm.registry import nearest
from feddrm.serve.feedback.outcome_table import latest_figures, outcome_table
from feddrm.serve.feedback.use_log import Outcome, OutcomeProblem, UseLog
from feddrm.serve.gateway import Gateway
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.decode import checked_options, read_body, require_known
from feddrm.serve.http.error_responses import ERROR_RESPONSES, ApiError, json_response
from feddrm.serve.http.number_array import require_few_lists
from feddrm.serve.http.openapi import json_body
from feddrm.serve.loaded_router import LoadedRouter
from feddrm.serve.schemas import (
    MAX_OUTCOMES,
    ErrorAnswer,
    OutcomeAnswer,
    OutcomeBatch,
    OutcomeOptions,
    OutcomeReport,
    OutcomeRequest,
    OutcomeTable,
)
from feddrm.serve.telemetry.audit import AuditRecord
from feddrm.serve.telemetry.tracing import trace_id

log = logging.getLogger("feddrm.serve")
STATUS = {"unknown": 404, "conflict": 409, "late": 410}  # of problems with outcomes; 422 for all others
NO_USE_LOG = "this gateway keeps no use log: start it with --use-log FILE"
SHOWN_CLASSES = 20


def add_artifact_routes(app: FastAPI, gateway: Gateway) -> None:
    """The paths that change the served artifact; they need the scope ``admin``. Each change is an audit record."""
    artifacts = gateway.artifacts

    @app.post("/v1/admin/reload", responses=ERROR_RESPONSES)
    async def reload(request: Request) -> Response:
        """Read the artifact again; if it is broken, the old one stays, and the error says why."""
        return await change(request, "reload", artifacts.reload)

    @app.post("/v1/admin/promote", responses={409: {"model": ErrorAnswer}, **ERROR_RESPONSES})
    async def promote(request: Request) -> Response:
        """Let the challenger answer all requests, also after a restart."""
        return await change(request, "promote", artifacts.promote)

    @app.post("/v1/admin/rollback", responses={409: {"model": ErrorAnswer}, **ERROR_RESPONSES})
    async def rollback(request: Request) -> Response:
        """Give up the challenger or, where it was promoted, serve the artifact before it."""
        return await change(request, "rollback", artifacts.rollback)

    async def change(request: Request, action: str, make: Callable[[], Awaitable[LoadedRouter]]) -> Response:
        started, caller = time.perf_counter(), await authorise(request, gateway.access, "admin")
        try:
            loaded = await make()
        except ApiError:
            raise
        except FeddrmError as error:
            raise ApiError(422, f"the old artifact stays: {error}") from error
        milliseconds = round(1e3 * (time.perf_counter() - started), 3)
        request_id = request.scope["state"]["request_id"]
        gateway.audit.add(
            AuditRecord(time.time(), request_id, caller, action, loaded.version, 0, "", None, 0.0, 0.0, 0, "", "", "",
                        milliseconds, trace_id())
        )  # fmt: skip
        return json_response({"artifact": loaded.version, "clients": list(loaded.names)})


def add_administration_routes(app: FastAPI, gateway: Gateway) -> None:
    """The paths that need the scope ``admin``, and the metrics."""
    add_artifact_routes(app, gateway)

    @app.get("/v1/clients", responses=ERROR_RESPONSES)
    async def clients(request: Request) -> Response:
        """Health, circuit and load of every registered client."""
        await authorise(request, gateway.access, "admin")
        return json_response({"clients": [upstream.as_dict() for upstream in gateway.upstreams.values()]})

    @app.get("/metrics", response_class=PlainTextResponse, responses=ERROR_RESPONSES)
    async def metrics(request: Request) -> Response:
        """The metrics, in the format of Prometheus. It needs the scope ``metrics`` or ``admin``."""
        await authorise(request, gateway.access, "metrics")
        for upstream in gateway.upstreams.values():
            gateway.metrics.available.labels(upstream.name).set(upstream.available)
            gateway.metrics.circuit.labels(upstream.name).set(upstream.circuit == "open")
        gateway.metrics.waiting_rows.set(gateway.router.batcher.waiting)
        gateway.metrics.audit_ok.set(gateway.audit.trouble is None)
        if gateway.use_log is not None:
            figures: dict[str, dict[str, Any]] = {}
            with contextlib.suppress(ApiError):  # a full disk must not hide the metrics that tell of it
                figures = await _in_thread(latest_figures, gateway.use_log.path)
            gateway.metrics.set_outcomes(figures)
        return Response(gateway.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_outcome_routes(app: FastAPI, gateway: Gateway) -> None:
    """The paths that take the true labels of answers, and show how good the answers were."""
    problems: dict[int | str, dict[str, Any]] = {
        404: {"model": ErrorAnswer, "description": "no such answer, or no use log"},
        409: {"model": ErrorAnswer, "description": "the answer has another outcome"},
        410: {"model": ErrorAnswer, "description": "too late"},
        **ERROR_RESPONSES,
    }

    @app.post("/v1/outcomes", responses={200: {"model": OutcomeAnswer}, **problems},
              openapi_extra=json_body(OutcomeRequest, OutcomeOptions))  # fmt: skip
    async def report(request: Request) -> Response:
        """Report the true label of an answer, or of many: all are stored, or none.

        It needs the scope ``predict``; for answers to another caller, whom the query string names, ``outcomes``.
        """
        asked = request.query_params.get("caller")
        reporter = await authorise(request, gateway.access, "predict" if asked is None else "outcomes")
        caller, use_log = reporter if asked is None else asked, _use_log(gateway)
        outcomes = _read_outcomes(await read_body(request, gateway.settings), gateway.classes)
        try:
            stored = await _in_thread(use_log.add_outcomes, outcomes, caller, reporter)
        except OutcomeProblem as problem:
            raise ApiError(STATUS.get(problem.kind, 422), str(problem)) from problem
        new = [one for one in stored if one is not None]
        for one in new:
            gateway.metrics.outcomes.labels(one.artifact, one.result).inc()
        return json_response({"stored": len(new), "known": len(stored) - len(new)})

    @app.get("/v1/outcomes", responses={200: {"model": OutcomeTable}, 404: problems[404], **ERROR_RESPONSES})
    async def outcomes(request: Request) -> Response:
        """Accuracy, calibration error and abstention over time and by artifact."""
        await authorise(request, gateway.access, "admin")
        return json_response(await _in_thread(outcome_table, _use_log(gateway).path))


async def _in_thread(work: Callable[..., Any], *arguments: object) -> Any:
    """The result of work on the use log's file; where the file fails, which is no caller's fault, 503."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OutcomeProblem:
        raise
    except (FeddrmError, sqlite3.Error) as error:
        log.error("the use log fails", extra={"fields": {"reason": str(error)}})
        raise ApiError(503, "the use log cannot be used now: try again in a while", {"Retry-After": "2"}) from error


def _use_log(gateway: Gateway) -> UseLog:
    if gateway.use_log is None:
        raise ApiError(404, NO_USE_LOG)
    return gateway.use_log


def _read_outcomes(body: bytes, classes: Sequence[str]) -> list[Outcome]:
    """The outcomes of a body: one object, or a list of them under ``outcomes``. Their labels must be classes."""
    require_few_lists(body, MAX_OUTCOMES)
    try:
        content = orjson.loads(body)
    except ValueError as error:
        raise FeddrmError('this is no JSON: give {"request_id": ..., "label": ...}') from error
    if not isinstance(content, dict):
        raise FeddrmError('the body is JSON, but no object: give {"request_id": ..., "label": ...}')
    if "outcomes" in content:
        listed = content["outcomes"] if isinstance(content["outcomes"], list) else []
        for one in listed[:MAX_OUTCOMES]:
            require_known(one if isinstance(one, dict) else (), OutcomeReport.model_fields)
        reports = checked_options(content, OutcomeBatch).outcomes
    else:
        reports = [checked_options(content, OutcomeReport)]
    outcomes = [Outcome(one.request_id, one.label, one.place) for one in reports]
    for outcome in outcomes:
        if outcome.label not in classes:
            known = ", ".join(classes[:SHOWN_CLASSES]) + (", ..." if len(classes) > SHOWN_CLASSES else "")
            label = outcome.label[:64]
            raise FeddrmError(f"unknown label '{label}'{nearest(label, classes)} (there are: {known})")
    return outcomes
