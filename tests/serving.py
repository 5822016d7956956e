"""Processes on this machine that serve a run, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from commands import FEDDRM, exit_code, fork
from feddrm.data import Federation
from feddrm.router.decisions.decision import AWAY
from feddrm.runs import Run, train
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.table_schema import TableSchema

NAMES = ("flatbed", "negative", "fax")
PATIENTS = """\
columns:
- {name: age, kind: number, title: Age, unit: years, centre: 50, scale: 10, minimum: 0, maximum: 120}
- {name: sex, kind: category, title: Sex, categories: {0: female, 1: male}}
- {name: cp, kind: category, title: Chest pain, missing: true, categories: {1: typical, 2: atypical, 3: none}}
- {name: chol, kind: number, unit: mg/dl, centre: 240, scale: 50, missing: true}
"""  # a table schema
QUICK = {"FEDDRM_SERVE_HEALTH_SECONDS": "0.2", "FEDDRM_SERVE_FAILURES": "2"}


class Process:
    """A running ``feddrm`` command; reading ``url`` or ``grpc_address`` waits until it listens."""

    def __init__(
        self, words: list[str], log: Path, environment: dict[str, str], largest_file: int | None = None
    ) -> None:
        self.log, self._out = log, log.with_suffix(".out")
        self._code: int | None = None
        more = {"largest_file": largest_file, "environment": {**os.environ, **environment}}
        self.pid = fork(FEDDRM, words, self._out, log, **more)

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        if self._code is None:
            self._code = exit_code(self.pid)
        return self._code

    @property
    def url(self) -> str:
        return self._addresses[0]

    @property
    def grpc_address(self) -> str:
        return self._addresses[1].removeprefix("gRPC at ")

    @property
    def _addresses(self) -> list[str]:
        until = time.monotonic() + 60
        while not (self._out.exists() and (line := self._out.read_text()).endswith("\n")):
            assert self.code() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)
        assert " at http" in line
        return line.strip().partition(" at ")[2].split(", ")

    def wait_ready(self, seconds: float = 60) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/v2/health/ready", timeout=5).status_code == 200:
                    return self.url
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def send(self, number: signal.Signals) -> None:
        if self.code() is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float = 20) -> int:
        until = time.monotonic() + seconds
        while (code := self.code()) is None:
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)
        return code

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        try:
            return self.wait()
        except AssertionError:
            self.send(signal.SIGKILL)
            return self.wait()

    def whole_log(self) -> str:
        """Its log up to its end. A running process writes its lines some time later, so it is stopped first."""
        assert self.stop() == 0
        return self.log.read_text()


Launch = Callable[..., Process]


def launcher(folder: Path) -> Iterator[Launch]:
    started: list[Process] = []

    def launch(*words: object, largest_file: int | None = None, **environment: str) -> Process:
        log = folder / f"{len(started)}.log"
        process = Process([str(word) for word in words], log, environment, largest_file)
        started.append(process)
        return process

    try:
        yield launch
    finally:
        for process in started:
            process.send(signal.SIGTERM)  # to all before waiting for any
        for process in started:
            process.stop()


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A new certificate of 127.0.0.1, signed by itself, and its key, as PEM files."""
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


class Hospitals:
    """A run on the four hospitals, a predictor for each, and a gateway. ``patient`` is cleveland's."""

    def __init__(self, heart: Federation, folder: Path, launch: Launch) -> None:
        self.launch, self.run = launch, folder / "run"
        train(heart, "feddrm", out=self.run, rounds=10, seed=0).fit_router(heart, joint=False)
        cleveland = heart.clients[0].test.x
        router = Run.open(self.run).router()
        sure = router.route(cleveland).probabilities[:, 0]
        self.patient: list[list[float]] = cleveland[(sure - 0.98).abs().argmin()][None].tolist()
        assert heart.schema is not None
        self.raw_patient = _raw(heart.schema, self.patient[0])
        self.predictors = {name: self.predictor(name) for name in heart.names}
        entries = {name: {"url": process.wait_ready()} for name, process in self.predictors.items()}
        (folder / "clients.yaml").write_text(yaml.safe_dump(entries))
        words = ["serve", self.run, "--clients", folder / "clients.yaml", "--port", 0]
        self.gateway = launch(*words, "--audit", folder / "audit.sqlite", **QUICK)
        self.audit = folder / "audit.sqlite"
        self.http = httpx.Client(base_url=self.gateway.wait_ready(), timeout=20)

    def predictor(self, name: str, port: int = 0) -> Process:
        return self.launch("serve-client", self.run / "clients" / name, "--port", port)

    def predict(self, **options: Any) -> dict[str, Any]:
        response = self.http.post("/v1/predict", json={"inputs": self.patient, **options})
        assert response.status_code == 200, response.text
        (answer,) = response.json()["answers"]
        return dict(answer)

    def away(self) -> bool:
        return not next(c for c in self.http.get("/v1/clients").json()["clients"] if c["client"] == "cleveland")[
            "healthy"
        ]

    def abstentions(self) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        counts = [
            line.rpartition(" ")[2] for line in lines if line.startswith(f'feddrm_abstentions_total{{reason="{AWAY}"')
        ]
        return float(counts[0]) if counts else 0.0


def _raw(schema: TableSchema, inputs: Sequence[float]) -> dict[str, Any]:
    """The raw row that is encoded so; None where a value is missing."""
    by_name = dict(zip(schema.encoded, inputs, strict=True))
    row: dict[str, Any] = {}
    for column in schema.columns:
        values = [by_name[name] for name in column.outputs]
        if by_name.get(f"{column.name}_missing"):
            row[column.name] = None
        elif isinstance(column, NumberColumn):
            row[column.name] = round(values[0] * column.scale + column.centre, 4)
        else:
            assert isinstance(column, CategoryColumn)
            row[column.name] = column.codes[int(values[0] > 0) if len(values) == 1 else values.index(1.0)]
    return row


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextlib.asynccontextmanager
async def in_process(
    run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, key: str = "", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A connection to a gateway with all its clients, without a process or a socket. ``key`` has the scope admin."""
    from feddrm.predictor.predictor import Predictor
    from feddrm.serve.app import build_gateway
    from feddrm.serve.predictor.predictor_app import build_predictor
    from feddrm.serve.settings import GatewaySettings, PredictorSettings

    apps: list[Any] = []

    def connect(app: Any) -> httpx.AsyncClient:
        apps.append(app)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    def http(name: str, _: object) -> httpx.AsyncClient:
        return connect(build_predictor(Predictor.load(run / "clients" / name), PredictorSettings()))

    monkeypatch.setattr("feddrm.serve.upstream.upstreams._http", http)
    (folder / "clients.yaml").write_text(yaml.safe_dump({name: {"url": "http://localhost"} for name in NAMES}))
    given = {"clients": folder / "clients.yaml", "audit": str(folder / "audit.sqlite"), "health_seconds": 0.05}
    gateway = connect(build_gateway(run, GatewaySettings(**(given | settings))))
    async with contextlib.AsyncExitStack() as stack:
        for app in apps:
            while not hasattr(app, "router"):  # the layers around FastAPI
                app = app.app
            await stack.enter_async_context(app.router.lifespan_context(app))
        client = await stack.enter_async_context(gateway)
        headers, until = {"X-API-Key": key}, time.monotonic() + 20
        while not all(c["healthy"] for c in (await client.get("/v1/clients", headers=headers)).json()["clients"]):
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        yield client
