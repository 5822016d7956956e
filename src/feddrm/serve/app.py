"""The gateway as an ASGI application: its routes, its console and the layers around them."""

from __future__ import annotations

from pathlib import Path

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from feddrm.io.dataset_summary import DatasetSummary
from feddrm.serve.admin_routes import add_administration_routes, add_outcome_routes
from feddrm.serve.console.console_routes import add_console_routes
from feddrm.serve.gateway import Gateway
from feddrm.serve.http.middleware import FastPaths, RequestMiddleware, new_application
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
    about = "Guides every query to the client best equipped for it. docs/serve.md says more."
    app = new_application("feddrm gateway", gateway.lifespan, description=about, separate_input_output_schemas=False)
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
