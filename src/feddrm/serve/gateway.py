"""The gateway: an application that routes queries, asks clients, and says what it did."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from feddrm._version import __version__
from feddrm.errors import FeddrmError
from feddrm.io.run_files import ROUTER_FOLDER
from feddrm.router.router import ONE_SCALE
from feddrm.serve.auth import Keys
from feddrm.serve.http.decode import Array, Checked, read_query, takes_long
from feddrm.serve.http.error_responses import Refusal, install_errors
from feddrm.serve.http.fast_routes import Shortcuts, header, read_body
from feddrm.serve.http.middleware import Guard
from feddrm.serve.loaded_router import Decided, LoadedRouter, Query, Row, version_of
from feddrm.serve.predictor.predictor import known_classes
from feddrm.serve.schemas import Options, PredictOptions
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.audit import AuditLog, Record
from feddrm.serve.telemetry.metrics import Metrics
from feddrm.serve.upstream.dispatch import DECLINED, Outcome, ask_clients
from feddrm.serve.upstream.upstreams import Registry

log = logging.getLogger("feddrm.serve")
RECENT = 500  # decisions the console can show


class Gateway:
    """Everything the gateway holds: the artifact, the clients, the log, the figures."""

    def __init__(self, run: Path, settings: GatewaySettings, classes: Sequence[str] = ()) -> None:
        self.run, self.settings = run, settings
        self.metrics = Metrics()
        self.keys = None if settings.keys is None else Keys(settings.keys)
        self.classes = tuple(classes)
        self.named = known_classes(run, len(self.classes)) is not None
        self.registry = Registry.read(settings.clients, settings, self.classes if self.named else ())
        self.holding = self._load()
        self.audit = AuditLog(
            settings.audit or str(run / "audit.sqlite"),
            settings.retention_days,
            on_count=lambda what, number: self.metrics.audit.labels(what).inc(number),
        )
        self.recent: deque[tuple[int, str | None, Record]] = deque(maxlen=RECENT)
        self.begun, self.numbered, self.abstained = time.time(), 0, 0
        self.taken: Counter[str] = Counter()
        self.ready = False
        self._reloading = asyncio.Lock()

    @property
    def folder(self) -> Path:
        return self.run / ROUTER_FOLDER

    def _load(self) -> LoadedRouter:
        """An artifact of this federation: its clients are those that can be asked, its classes those they answer."""
        found = LoadedRouter.load(self.folder, self.settings, self.metrics.batch_rows.observe, self.metrics.decided)
        names, where = found.router.names, self.settings.clients
        for name in self.registry.peers:
            if name not in names:
                raise FeddrmError(f"{where}: the router knows no client '{name}' (there are: {', '.join(names)})")
        if self.classes and found.classes != len(self.classes):
            raise FeddrmError(
                f"{self.folder} has {found.classes} classes, not {len(self.classes)}: start the gateway anew"
            )
        known = known_classes(self.run, found.classes)
        if self.named and known is not None and known != self.classes:
            raise FeddrmError(f"{self.folder} has other classes ({', '.join(known)}): start the gateway anew")
        self.metrics.artifact.clear()
        self.metrics.artifact.labels(found.version).set(1)
        return found

    async def reload(self) -> LoadedRouter:
        """Put a new artifact in place; one that cannot be read or used leaves the old one."""
        async with self._reloading:  # one after the other: the one that read last must be the one that stays
            try:
                found = await asyncio.to_thread(self._load)
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                log.error("reload failed, the old artifact stays", extra={"fields": {"reason": str(error)}})
                raise
            self.metrics.reloads.labels("done").inc()
            self.holding = found
        log.info("artifact loaded", extra={"fields": {"artifact": found.version}})
        self._say_scales()
        return found

    def _say_scales(self) -> None:
        if self.holding.router.own_scales:
            log.warning("every client has its own scale: raw pixels are refused", extra={"fields": {"do": ONE_SCALE}})

    async def watch(self) -> None:
        """Look for a new artifact now and then; a broken one is tried once."""
        tried = self.holding.version
        while True:
            await asyncio.sleep(self.settings.reload_seconds)
            with contextlib.suppress(Exception):  # reload has logged it
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
        self._say_scales()
        yield
        self.ready = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.registry.close()
        await asyncio.to_thread(self.audit.close)
        log.info("stopped")

    async def read(self, request: Request, holding: LoadedRouter, kind: type[Checked]) -> tuple[str, Array, Checked]:
        """Samples and options of a request."""
        body = await read_body(request, self.settings)
        sort = header(request, b"content-type")
        query = dict(parse_qsl(str(request.scope["query_string"], "latin-1"), keep_blank_values=True))
        if takes_long(body, sort):
            return await asyncio.to_thread(read_query, body, sort, query, holding.wanted, kind)
        return read_query(body, sort, query, holding.wanted, kind)

    async def decide(self, holding: LoadedRouter, kind: str, x: Array, options: Options) -> Decided:
        """The router's decisions, with the clients that can be asked now."""
        names = holding.router.names
        for name in options.without:
            if name not in names:
                raise FeddrmError(f"unknown client '{name[:64]}' (there are: {', '.join(names)})")
        available = self.registry.available(names, options.without)
        rule, coverage = options.rule or self.settings.rule, options.coverage or self.settings.coverage
        return await holding.batcher(Query(kind, x, rule, coverage, available), len(x))

    async def ask(
        self, holding: LoadedRouter, kind: str, x: Array, rows: Sequence[Row], options: PredictOptions
    ) -> tuple[list[Outcome], Refusal | None]:
        """What the clients say, and the refusal that is due where a sample was answered by nobody.

        Nobody is asked about samples that shall be refused.
        """
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
        silent = next((outcome for outcome in found if not outcome.answers), None)
        if silent is None:
            return outcomes, None
        tried = {holding.router.names[c]: reason for c, reason in silent.failed.items()}
        if tried and set(tried.values()) == {DECLINED}:
            return outcomes, Refusal(422, f"the clients do not take {kind} of this kind: send the sample itself")
        why = ", ".join(f"{name}: {reason}" for name, reason in tried.items()) or "none is available"
        return outcomes, Refusal(503, f"no client answered ({why}): try again in a while", {"Retry-After": "2"})

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
        holding: LoadedRouter,
        decided: Decided,
        began: float,
        outcomes: Sequence[Outcome] = (),
        labels: Sequence[str | None] = (),
    ) -> None:
        """Into the audit log, and among the recent decisions: those of a request that are alike as one."""
        names, state = holding.router.names, request.scope["state"]
        now, ms = time.time(), round(1e3 * (time.perf_counter() - began), 3)
        clients, best, margins = decided.client.tolist(), decided.best.tolist(), decided.margin.tolist()
        told = [outcome.told(names) for outcome in outcomes] or repeat(("", ""))
        # Where nothing but the client can differ, it alone is the key: a request may hold a thousand samples.
        keys = zip(clients, decided.reason, told, strict=False) if outcomes or any(decided.reason) else clients
        alike: dict[Any, list[int]] = {}
        for place, key in enumerate(keys):
            alike.setdefault(key, []).append(place)
        for key, places in alike.items():
            client, reason, (answered, failed) = key if isinstance(key, tuple) else (key, "", ("", ""))
            record = Record(
                now, state["request_id"], state.get("caller", ""), action, holding.version,
                len(places), ",".join(map(str, places)), names[client] if client >= 0 else None,
                min([best[i] for i in places]), min([margins[i] for i in places]), int(reason != ""), reason,
                answered, failed, ms,
            )  # fmt: skip
            self.audit.add(record)
            self.numbered += 1
            label = labels[places[0]] if labels and len(places) == 1 else None
            self.recent.append((self.numbered, label, record))
            self.taken[record.client or ""] += len(places)
            self.abstained += len(places) * record.abstain


def build_gateway(
    run: Path,
    settings: GatewaySettings,
    classes: Sequence[str] = (),
    console: Callable[[FastAPI, Gateway], None] | None = None,
) -> ASGIApp:
    """The application for a run; ``console`` adds its pages (see :mod:`feddrm.serve.console.console_routes`)."""
    from feddrm.serve.routes import add_pages

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
    front: ASGIApp = Shortcuts(app, add_pages(app, gateway))
    if console is not None:
        console(app, gateway)
    if settings.cors:
        front = CORSMiddleware(
            front,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )

    guard = Guard(front, settings, gateway.metrics.seen, settings.cors)
    gateway.metrics.in_flight.set_function(lambda: guard.in_flight)
    return guard
