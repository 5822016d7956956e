"""The gateway: an application that routes queries, asks clients, and says what it did."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from feddrm import __version__
from feddrm.errors import FeddrmError
from feddrm.serve.asking import DECLINED, Outcome, ask_clients
from feddrm.serve.audit import AuditLog, Record
from feddrm.serve.guard import Guard, Refusal, install_errors, read_body
from feddrm.serve.holding import Holding, Query, Row, version_of
from feddrm.serve.keys import Keys
from feddrm.serve.messages import Options, PredictOptions
from feddrm.serve.metrics import Metrics
from feddrm.serve.reading import read_query
from feddrm.serve.registry import Registry
from feddrm.serve.settings import GatewaySettings

log = logging.getLogger("feddrm.serve")
LARGE = 4096  # bytes of a body beyond which it is read in a thread
RECENT = 500  # decisions the console can show


class Gateway:
    """Everything the gateway holds: the artifact, the clients, the log, the figures."""

    def __init__(self, run: Path, settings: GatewaySettings, classes: Sequence[str] = ()) -> None:
        self.run, self.settings = run, settings
        self.metrics = Metrics()
        self.keys = None if settings.keys is None else Keys.read(settings.keys)
        self.registry = Registry.read(settings.clients, settings)
        self.holding = self._load()
        self.classes = tuple(classes)
        unknown = [name for name in self.registry.peers if name not in self.holding.router.names]
        if unknown:
            names = ", ".join(self.holding.router.names)
            raise FeddrmError(f"{settings.clients}: the router knows no client '{unknown[0]}' (there are: {names})")
        self.audit = AuditLog(
            settings.audit or str(run / "audit.sqlite"),
            settings.retention_days,
            on_count=lambda what, number: self.metrics.audit.labels(what).inc(number),
        )
        self.recent: deque[tuple[int, str | None, Record]] = deque(maxlen=RECENT)
        self.numbered = self.abstained = 0
        self.taken: Counter[str] = Counter()
        self.ready = False

    @property
    def folder(self) -> Path:
        return self.run / "router"

    def _load(self) -> Holding:
        found = Holding.load(self.folder, self.settings, self.metrics.batch_rows.observe)
        self.metrics.artifact.clear()
        self.metrics.artifact.labels(found.version).set(1)
        return found

    async def reload(self) -> Holding:
        """Put a new artifact in place; one that cannot be read or used leaves the old one."""
        try:
            found = await asyncio.to_thread(self._load)
        except Exception as error:
            self.metrics.reloads.labels("failed").inc()
            log.error("reload failed, the old artifact stays", extra={"fields": {"reason": str(error)}})
            raise
        self.metrics.reloads.labels("done").inc()
        self.holding = found
        log.info("artifact loaded", extra={"fields": {"artifact": found.version}})
        return found

    async def watch(self) -> None:
        """Look for a new artifact now and then; a broken one is tried once."""
        tried = self.holding.version
        while True:
            await asyncio.sleep(self.settings.reload_seconds)
            with contextlib.suppress(FeddrmError):
                version = version_of(self.folder)
                if version not in (self.holding.version, tried):
                    tried = version
                    await self.reload()

    @contextlib.asynccontextmanager
    async def serving(self, _: FastAPI) -> AsyncIterator[None]:
        """While the application runs: health checks, and a look at the artifact's folder."""
        tasks = [asyncio.create_task(self.registry.watch())] if self.registry.peers else []
        if self.settings.reload_seconds:
            tasks.append(asyncio.create_task(self.watch()))
        self.ready = True
        log.info("ready", extra={"fields": {"artifact": self.holding.version, "clients": len(self.registry.peers)}})
        yield
        self.ready = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.registry.close()
        await asyncio.to_thread(self.audit.close)
        log.info("stopped")

    async def read(self, request: Request, holding: Holding, kind: type[Options]) -> tuple[str, Any, Any]:
        """Samples and options of a request."""
        body = await read_body(request, self.settings.max_body_bytes)

        def read() -> tuple[str, Any, Any]:
            sort, query = request.headers.get("content-type", ""), dict(request.query_params)
            return read_query(body, sort, query, holding.wanted, kind)

        return await asyncio.to_thread(read) if len(body) > LARGE else read()

    async def decide(self, holding: Holding, kind: str, x: Any, options: Options) -> list[Row]:
        """The router's decisions, with the clients that can be asked now."""
        names = holding.router.names
        for name in options.without:
            if name not in names:
                raise FeddrmError(f"unknown client '{name[:64]}' (there are: {', '.join(names)})")
        available = tuple(self.registry.can_answer(name) and name not in options.without for name in names)
        query = Query(
            kind, x, options.rule or self.settings.rule, options.coverage or self.settings.coverage, available
        )
        rows = await holding.batcher(query, len(x))
        for client, number in Counter(row.client for row in rows).items():
            self.metrics.decisions.labels(names[client] if client >= 0 else "nobody").inc(number)
        for reason, number in Counter(row.reason for row in rows if row.abstain).items():
            self.metrics.abstentions.labels(reason).inc(number)
        return rows

    async def ask(self, holding: Holding, kind: str, x: Any, rows: list[Row], options: PredictOptions) -> list[Outcome]:
        """What the clients say; nobody is asked about samples that shall be refused."""
        if not self.registry.peers:
            raise Refusal(503, "no clients are registered: start the gateway with --clients or --demo")
        asked = [i for i, row in enumerate(rows) if not (options.abstain == "refuse" and row.abstain)]
        outcomes = [Outcome() for _ in rows]
        found = await ask_clients(
            kind,
            x[asked],
            [rows[i] for i in asked],
            holding.router.names,
            self.registry.peers,
            classes=len(self.classes),
            k=min(options.consult, len(holding.router.names)),
            without=options.without,
            deadline=self.settings.deadline_seconds,
        )
        for i, outcome in zip(asked, found, strict=True):
            outcomes[i] = outcome
            self._count(outcome, holding.router.names)
        silent = [i for i in asked if not outcomes[i].answers]
        if silent:
            tried = {holding.router.names[c]: reason for c, reason in outcomes[silent[0]].failed.items()}
            if tried and set(tried.values()) == {DECLINED}:
                raise Refusal(422, f"the clients do not take {kind} of this kind: send the sample itself")
            why = ", ".join(f"{name}: {reason}" for name, reason in tried.items()) or "none is available"
            raise Refusal(503, f"no client answered ({why}): try again in a while", {"Retry-After": "2"})
        return outcomes

    def _count(self, outcome: Outcome, names: Sequence[str]) -> None:
        for client in outcome.answers:
            self.metrics.answers.labels(names[client]).inc()
        for client, reason in outcome.failed.items():
            self.metrics.failures.labels(names[client], reason).inc()
        if not outcome.answers:
            self.metrics.unanswered.inc()

    def note(
        self,
        request: Request,
        action: str,
        holding: Holding,
        rows: Sequence[Row],
        outcomes: Sequence[Outcome] = (),
        labels: Sequence[str | None] = (),
        began: float = 0.0,
    ) -> None:
        """Into the audit log, and among the recent decisions."""
        names, now, ms = holding.router.names, time.time(), round(1e3 * (time.perf_counter() - began), 3)
        caller = getattr(request.state, "caller", "")
        for i, row in enumerate(rows):
            outcome = outcomes[i] if outcomes else None
            record = Record(
                now, request.state.request_id, caller, action, holding.version,
                names[row.client] if row.client >= 0 else None,
                max(row.probabilities), row.margin, int(row.abstain), row.reason,
                ",".join(names[c] for c in outcome.answers) if outcome else "",
                ",".join(f"{names[c]}:{reason}" for c, reason in outcome.failed.items()) if outcome else "",
                ms,
            )  # fmt: skip
            self.audit.add(record)
            self.numbered += 1
            self.recent.append((self.numbered, labels[i] if labels else None, record))
        self.taken.update(names[row.client] if row.client >= 0 else "" for row in rows)
        self.abstained += sum(row.abstain for row in rows)


def build_gateway(
    run: Path,
    settings: GatewaySettings,
    classes: Sequence[str] = (),
    console: Callable[[FastAPI, Gateway], None] | None = None,
) -> ASGIApp:
    """The application for a run; ``console`` adds its pages (see :mod:`feddrm.serve.console`)."""
    from feddrm.serve.pages import add_pages

    gateway = Gateway(run, settings, classes)
    app = FastAPI(
        title="feddrm gateway",
        version=__version__,
        description="Guides every query to the client best equipped for it. docs/serve.md says more.",
        lifespan=gateway.serving,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.gateway = gateway
    install_errors(app)
    add_pages(app, gateway)
    if console is not None:
        console(app, gateway)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )

    def seen(path: str, status: int, seconds: float) -> None:
        gateway.metrics.requests.labels(path, str(status)).inc()
        gateway.metrics.seconds.labels(path).observe(seconds)

    guard = Guard(app, settings, seen)
    gateway.metrics.in_flight.set_function(lambda: guard.in_flight)
    return guard
