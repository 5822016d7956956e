"""The gateway as an ASGI application: its routes, its console and the layers around them."""

from __future__ import annotations

from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from feddrm._version import __version__
from feddrm.io.dataset_summary import DatasetSummary
from feddrm.serve.admin_routes import add_administration_routes, add_outcome_routes
from feddrm.serve.console.console_routes import add_console_routes
from feddrm.serve.gateway import Gateway
from feddrm.serve.http.decode import check_query
from feddrm.serve.http.error_responses import ERROR_RESPONSES, install_error_handlers
from feddrm.serve.http.middleware import FastPaths, RequestMiddleware
from feddrm.serve.routes import MODELS, add_query_routes
from feddrm.serve.settings import GatewaySettings

FAST_PATHS = ("/v1/route", "/v1/predict", *(f"/v2/models/{model}/infer" for model in MODELS))


def build_gateway(
    run: Path,
    settings: GatewaySettings,
    summary: DatasetSummary | None = None,
    samples: bool = False,
) -> ASGIApp:
    """The application that serves a run. The console shows the dataset summary, its pictures with ``samples`` only."""
    gateway = Gateway(run, settings)
    app = FastAPI(
        title="feddrm gateway",
        version=__version__,
        description="Guides every query to the client best equipped for it. docs/serve.md says more.",
        lifespan=gateway.lifespan,
        dependencies=[Depends(check_query)],
        responses={422: ERROR_RESPONSES[422]},
        docs_url=None,  # this page would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy it would send callers, and their keys, to http://
        separate_input_output_schemas=False,
    )
    install_error_handlers(app)
    add_query_routes(app, gateway)
    add_outcome_routes(app, gateway)
    add_administration_routes(app, gateway)
    add_console_routes(app, gateway, summary, samples)
    layers: ASGIApp = FastPaths(app, FAST_PATHS)
    if settings.cors:
        layers = CORSMiddleware(
            layers,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-ID", "traceparent", "tracestate"],
        )
    outermost = RequestMiddleware(layers, settings, gateway.metrics.observe_request, settings.cors, gateway.tracer)
    gateway.metrics.in_flight.set_function(lambda: outermost.in_flight)
    return outermost
