from __future__ import annotations

import asyncio
import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from feddrm.serve.app import build_gateway
from feddrm.serve.settings import GatewaySettings, HttpSettings, make_settings
from feddrm.serve.telemetry.trace_setup import NO_ENDPOINT, NO_EXTRA, open_tracer
from refusal import refused

ENDPOINT = "http://me:secret@127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the extra."""
    real = builtins.__import__

    def refuse(name: str, *words: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named '{name}'")
        return real(name, *words, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "feddrm.serve.telemetry.otel", raising=False)


def test_without_the_extra_and_an_endpoint_nothing_is_said(not_installed: None) -> None:
    tracer = open_tracer(HttpSettings(), "gateway")
    assert (tracer.recorder, tracer.notice) == (None, "")


def test_an_endpoint_without_the_extra_is_an_error_if_the_settings_name_it(
    not_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("pip install 'feddrm[otel]'"):
        open_tracer(HttpSettings(trace_endpoint=ENDPOINT), "gateway")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)  # perhaps of the whole machine
    tracer = open_tracer(HttpSettings(), "gateway")
    assert (tracer.recorder, tracer.notice) == (None, NO_EXTRA)


def test_the_extra_without_an_endpoint_is_one_line_of_the_log(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'feddrm[otel]' to run this")
    app: Any = build_gateway(run, GatewaySettings(audit=str(tmp_path / "audit.sqlite")))
    inner = app.app.app

    async def start_and_stop() -> None:
        async with inner.router.lifespan_context(inner):
            pass

    with caplog.at_level("INFO", "feddrm.serve"):
        asyncio.run(start_and_stop())
    assert [record.message for record in caplog.records].count(NO_ENDPOINT) == 1


def test_variables_of_opentelemetry_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'feddrm[otel]' to run this")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tracer = open_tracer(HttpSettings(), "gateway")
    assert tracer.recorder is not None
    assert tracer.notice == "traces are sent to 127.0.0.1"  # without the password
    tracer.close()
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as within:
            within.setenv(name, value)
            assert open_tracer(HttpSettings(), "gateway").recorder is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with refused("http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        open_tracer(HttpSettings(), "gateway")


def test_bad_settings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("trace_endpoint"):
        make_settings(GatewaySettings, trace_endpoint="collector:4318")
    with refused("trace_rate"):
        make_settings(GatewaySettings, trace_rate=-1)
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'feddrm[otel]' to run this")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")  # less than one batch
    with refused("cannot send traces", "max_queue_size", "OTEL_*"):
        open_tracer(HttpSettings(trace_endpoint=ENDPOINT), "gateway")
