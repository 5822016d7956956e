"""The gateway: the router it serves, the clients it asks, and the record of its decisions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from starlette.requests import Request

from feddrm.errors import FeddrmError
from feddrm.io.run_files import RunFiles
from feddrm.predictor.predictor import class_names, known_classes
from feddrm.router import read_manifest
from feddrm.router.router import ONE_SCALE
from feddrm.serve.auth import ApiKeys
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.decode import Array
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.loaded_router import Decisions, LoadedRouter, RouterQuery, artifact_version
from feddrm.serve.schemas import Options, PredictOptions
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.audit import AuditLog, AuditRecord
from feddrm.serve.telemetry.metrics import Metrics
from feddrm.serve.upstream.dispatch import DECLINED, SampleAnswers, ask_clients
from feddrm.serve.upstream.upstreams import Upstreams

log = logging.getLogger("feddrm.serve")
RECENT = 500  # decisions that the console can show


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext:
    """Who sent a request for what, when, and the router that answers it: a reload does not change it."""

    action: str
    request_id: str
    caller: str
    started: float
    router: LoadedRouter


class Gateway:
    """Everything the gateway holds: the router, the clients, the audit log and the metrics."""

    def __init__(self, run: Path, settings: GatewaySettings) -> None:
        self.run, self.settings = run, settings
        self.metrics = Metrics()
        self.keys = None if settings.keys is None else ApiKeys(settings.keys)
        number = int(read_manifest(self.folder)["classes"])
        self.classes, self.has_class_names = class_names(run, number), known_classes(run, number) is not None
        self.upstreams = Upstreams.read(settings.clients, settings, self.classes if self.has_class_names else ())
        self.router = self._load()
        self.audit = AuditLog(
            settings.audit or str(run / "audit.sqlite"),
            settings.retention_days,
            on_count=lambda outcome, number: self.metrics.audit.labels(outcome).inc(number),
        )
        # What the console shows: recent decisions with number and label, and totals since the start.
        self.recent: deque[tuple[int, str | None, AuditRecord]] = deque(maxlen=RECENT)
        self.start_time, self.record_count, self.abstained = time.time(), 0, 0
        self.decisions_by_client: Counter[str] = Counter()
        self.ready = False
        self._reloading = asyncio.Lock()

    @property
    def folder(self) -> Path:
        return RunFiles(self.run).router

    def _load(self) -> LoadedRouter:
        """Read the artifact. Its clients must include those of ``clients.yaml``, and its classes must be ours."""
        loaded = LoadedRouter.load(self.folder, self.settings, self.metrics)
        for name in self.upstreams:
            if name not in loaded.names:
                known = ", ".join(loaded.names)
                raise FeddrmError(f"{self.settings.clients}: the router knows no client '{name}' (there are: {known})")
        if loaded.classes != len(self.classes):
            raise FeddrmError(
                f"{self.folder} has {loaded.classes} classes, not {len(self.classes)}: start the gateway anew"
            )
        classes = known_classes(self.run, loaded.classes)
        if self.has_class_names and classes is not None and classes != self.classes:
            raise FeddrmError(f"{self.folder} has other classes ({', '.join(classes)}): start the gateway anew")
        self.metrics.artifact.clear()
        self.metrics.artifact.labels(loaded.version).set(1)
        return loaded

    async def reload(self) -> LoadedRouter:
        """Read the artifact again. If it cannot be read or used, the old one stays."""
        async with self._reloading:  # one after the other, so that the latest artifact is the one that stays
            try:
                loaded = await asyncio.to_thread(self._load)
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                log.error("reload failed, the old artifact stays", extra={"fields": {"reason": str(error)}})
                raise
            self.metrics.reloads.labels("done").inc()
            self.router = loaded
        log.info("artifact loaded", extra={"fields": {"artifact": loaded.version}})
        self._warn_of_own_values()
        return loaded

    def _warn_of_own_values(self) -> None:
        if self.router.router.own_scales:
            log.warning("every client has its own scale: raw pixels are refused", extra={"fields": {"do": ONE_SCALE}})
        if (schema := self.router.router.schema) is not None and schema.filled:
            # Whose values would fill the gaps of a query is what the router is asked.
            log.warning(
                "in training every client filled missing values by its own; those of queries stay empty",
                extra={"fields": {"do": "train with common values (data heart: --set data.impute=common)"}},
            )

    async def _watch_artifact(self) -> None:
        """Reload whenever the artifact's version changes; a broken version is tried once."""
        tried = self.router.version
        while True:
            await asyncio.sleep(self.settings.reload_seconds)
            with contextlib.suppress(Exception):  # reload has logged it
                version = artifact_version(self.folder)
                if version not in (self.router.version, tried):
                    tried = version
                    await self.reload()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Run health checks and the watch on the artifact while the application runs; then close everything."""
        tasks = [asyncio.create_task(self.upstreams.watch(self.settings.health_seconds))] if self.upstreams else []
        if self.settings.reload_seconds:
            tasks.append(asyncio.create_task(self._watch_artifact()))
        self.ready = True
        log.info("ready", extra={"fields": {"artifact": self.router.version, "clients": len(self.upstreams)}})
        self._warn_of_own_values()
        yield
        self.ready = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.upstreams.close()
        await asyncio.to_thread(self.audit.close)
        log.info("stopped")

    def begin(self, request: Request, action: str) -> RequestContext:
        """Check the API key of a request to route or predict, and take the current router for it."""
        caller = authorise(request, self.keys, action)
        return RequestContext(action, request.scope["state"]["request_id"], caller, time.perf_counter(), self.router)

    async def decide(self, context: RequestContext, kind: str, x: Array, options: Options) -> Decisions:
        """The router's decisions among the clients that can be asked now."""
        names = context.router.names
        for name in options.without:
            if name not in names:
                raise FeddrmError(f"unknown client '{name[:64]}' (there are: {', '.join(names)})")
        available = self.upstreams.available(names, options.without)
        rule, coverage = options.rule or self.settings.rule, options.coverage or self.settings.coverage
        return await context.router.batcher(RouterQuery(kind, x, rule, coverage, available), len(x))

    async def ask(
        self, context: RequestContext, kind: str, x: Array, decisions: Decisions, options: PredictOptions
    ) -> tuple[list[SampleAnswers], ApiError | None]:
        """The clients' answers to every sample, and an error if a sample got none.

        With ``abstain="refuse"`` no client is asked about samples from which the router abstains.
        """
        names = context.router.names
        abstain = decisions.abstain.tolist()
        asked = [i for i in range(len(x)) if not (options.abstain == "refuse" and abstain[i])]
        replies = await ask_clients(
            kind,
            x[asked],
            [decisions.rankings[i] for i in asked],
            [None if name in options.without else self.upstreams.get(name) for name in names],
            classes=len(self.classes),
            k=min(options.consult, len(names)),
            deadline=self.settings.deadline_seconds,
        )
        answers = [SampleAnswers() for _ in range(len(x))]
        for i, reply in zip(asked, replies, strict=True):
            answers[i] = reply
            self._count(reply, names)
        unanswered = next((reply for reply in replies if not reply.probabilities), None)
        if unanswered is None:
            return answers, None
        failed = {names[client]: reason for client, reason in unanswered.failed.items()}
        if failed and set(failed.values()) == {DECLINED}:
            return answers, ApiError(422, f"the clients do not take {kind} of this kind: send the sample itself")
        why = ", ".join(f"{name}: {reason}" for name, reason in failed.items()) or "none is available"
        return answers, ApiError(503, f"no client answered ({why}): try again in a while", {"Retry-After": "2"})

    def _count(self, answers: SampleAnswers, names: Sequence[str]) -> None:
        for client in answers.probabilities:
            self.metrics.answers.labels(names[client]).inc()
        for client, reason in answers.failed.items():
            self.metrics.failures.labels(names[client], reason).inc()
        if not answers.probabilities:
            self.metrics.unanswered.inc()

    def record(
        self,
        context: RequestContext,
        decisions: Decisions,
        answers: Sequence[SampleAnswers] = (),
        labels: Sequence[str | None] = (),
    ) -> None:
        """Add decisions to the audit log and to the recent ones: equal decisions of a request make one record."""
        names = context.router.names
        now, milliseconds = time.time(), round(1e3 * (time.perf_counter() - context.started), 3)
        best, margins = decisions.best.tolist(), decisions.margin.tolist()
        for (client, reason, answered, failed), places in _equal_decisions(decisions, answers, names).items():
            record = AuditRecord(
                now, context.request_id, context.caller, context.action, context.router.version,
                len(places), ",".join(map(str, places)), names[client] if client >= 0 else None,
                min([best[i] for i in places]), min([margins[i] for i in places]), int(reason != ""), reason,
                answered, failed, milliseconds,
            )  # fmt: skip
            self.audit.add(record)
            self.record_count += 1
            label = labels[places[0]] if labels and len(places) == 1 else None
            self.recent.append((self.record_count, label, record))
            self.decisions_by_client[record.client or ""] += len(places)
            self.abstained += len(places) * record.abstain


def _equal_decisions(
    decisions: Decisions, answers: Sequence[SampleAnswers], names: Sequence[str]
) -> dict[tuple[int, str, str, str], list[int]]:
    """The positions of equal decisions, by client, reason to abstain, who answered and who failed."""
    answered: Iterable[str] = repeat("")
    failed: Iterable[str] = repeat("")
    if answers:
        answered, failed = zip(*(answer.summary(names) for answer in answers), strict=True)
    positions: dict[tuple[int, str, str, str], list[int]] = {}
    for place, key in enumerate(zip(decisions.client.tolist(), decisions.reason, answered, failed, strict=False)):
        positions.setdefault(key, []).append(place)
    return positions
