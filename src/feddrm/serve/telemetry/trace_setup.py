"""Whether requests are recorded and where their traces are sent, by settings and OTEL_* variables."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from urllib.parse import urlsplit

from feddrm.errors import FeddrmError
from feddrm.serve.settings import HttpSettings
from feddrm.serve.telemetry.tracing import Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
NO_EXTRA = "traces need more packages: pip install 'feddrm[otel]'"
NO_ENDPOINT = "no traces are sent: give --trace-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT to send them"


def open_tracer(settings: HttpSettings, service: str, on_count: Callable[[str], None] | None = None) -> Tracer:
    """The tracer of a gateway or a predictor. It records if there is an endpoint, in the settings or by OTEL_*.

    Nothing of OpenTelemetry is imported otherwise. A missing package is an error only if the settings ask for it: the
    variables may be those of a whole machine.
    """
    endpoint = settings.trace_endpoint
    meant = endpoint or _variable(ENDPOINTS)
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return Tracer()
    if meant is None:
        return Tracer(notice=NO_ENDPOINT if importlib.util.find_spec("opentelemetry") else "")
    try:
        from feddrm.serve.telemetry.otel import open_recorder
    except ImportError as error:
        if endpoint is not None:
            raise FeddrmError(f"{NO_EXTRA} ({error})") from error
        return Tracer(notice=NO_EXTRA)
    if _variable(PROTOCOLS) not in (None, PROTOCOL):
        raise FeddrmError(f"traces are sent by {PROTOCOL} only: set OTEL_EXPORTER_OTLP_PROTOCOL to it, or leave it out")
    recorder = open_recorder(endpoint, service, settings.trace_rate, on_count)
    return Tracer(recorder, f"traces are sent to {urlsplit(meant).hostname}")  # a URL may hold a password


def _variable(names: tuple[str, ...]) -> str | None:
    """The first of these environment variables that is set and not empty."""
    return next(filter(None, map(os.environ.get, names)), None)
