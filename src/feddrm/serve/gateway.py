"""The gateway: the router it serves, the clients it asks, and the record of its decisions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import repeat
from pathlib import Path

from starlette.requests import Request

from feddrm.errors import FeddrmError
from feddrm.predictor.predictor import class_names, known_classes
from feddrm.registry import listing
from feddrm.router import read_manifest
from feddrm.router.decisions.decision import AWAY, DOWN
from feddrm.router.label_sets import SHARE
from feddrm.serve.access import Access
from feddrm.serve.feedback.artifacts import Artifacts
from feddrm.serve.feedback.drift_watch import DriftWatch
from feddrm.serve.feedback.serving_state import ServingState
from feddrm.serve.feedback.use_log import UseLog
from feddrm.serve.http.authorise import authorise
from feddrm.serve.http.decode import Array
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.loaded_router import Decisions, LoadedRouter, RequestContext, RouterQuery
from feddrm.serve.schemas import Options, PredictOptions
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.audit import AuditLog, AuditRecord
from feddrm.serve.telemetry.metrics import Metrics
from feddrm.serve.telemetry.trace_setup import open_tracer
from feddrm.serve.telemetry.tracing import add_span, trace_id
from feddrm.serve.upstream.dispatch import DECLINED, NO_SETS, Question, SampleAnswers, ask_clients
from feddrm.serve.upstream.upstreams import LEFT_OUT, Upstreams

log = logging.getLogger("feddrm.serve")
RECENT = 500  # decisions that the console can show


class Gateway:
    """Everything the gateway holds: the router, the clients, the audit log and the metrics."""

    def __init__(self, run: Path, settings: GatewaySettings) -> None:
        self.run, self.settings = run, settings
        self.metrics = Metrics()
        self.tracer = open_tracer(settings, "feddrm-gateway", self.metrics.observe_trace)
        self.access = Access(settings, self.metrics.issuer_ok.set)
        number = int(read_manifest(ServingState.read(run).folder(run))["classes"])
        self.classes, named = class_names(run, number), known_classes(run, number) is not None
        self.upstreams = Upstreams.read(settings.clients, settings, self.classes if named else ())
        self.artifacts = Artifacts(run, settings, self.metrics, self.upstreams, self.classes if named else number)
        self.audit = AuditLog(
            settings.audit or str(run / "audit.sqlite"),
            settings.retention_days,
            on_count=lambda outcome, number: self.metrics.audit.labels(outcome).inc(number),
        )
        self.use_log = self._open_use_log()
        self.drift = DriftWatch(self.metrics) if settings.drift else None
        # What the console shows: recent decisions with number and label, and totals since the start.
        self.recent: deque[tuple[int, str | None, AuditRecord]] = deque(maxlen=RECENT)
        self.start_time, self.record_count, self.abstained = time.time(), 0, 0
        self.decisions_by_client: Counter[str] = Counter()
        self.ready = False

    @property
    def router(self) -> LoadedRouter:
        """The served artifact."""
        return self.artifacts.served

    def _open_use_log(self) -> UseLog | None:
        settings = self.settings
        if settings.use_log is None:
            return None
        return UseLog(
            settings.use_log,
            retention_days=settings.retention_days,
            max_rows=settings.max_uses,
            feature_rows=settings.record_features,
            on_count=lambda outcome, number: self.metrics.uses.labels(outcome).inc(number),
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Run health checks and the watch on the artifact while the application runs; then close everything."""
        tasks = [asyncio.create_task(self.upstreams.watch(self.settings.health_seconds))] if self.upstreams else []
        if self.settings.reload_seconds:
            tasks.append(asyncio.create_task(self.artifacts.watch()))
        await self.access.start()
        self.ready = True
        log.info("ready", extra={"fields": {"artifact": self.router.version, "clients": len(self.upstreams)}})
        self.tracer.start()
        self.artifacts.warn_of_own_values()
        yield
        self.ready = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.upstreams.close()
        for closing in (self.artifacts.challenger, self.drift, self.use_log, self.audit, self.tracer):
            if closing is not None:
                await asyncio.to_thread(closing.close)
        log.info("stopped")

    async def begin(self, request: Request, action: str) -> RequestContext:
        """Check the key or token of a request to route or predict, and take the current router for it."""
        caller = await authorise(request, self.access, action)
        request_id = request.scope["state"]["request_id"]
        return RequestContext(action, request_id, caller, time.perf_counter(), self.artifacts.answering(request_id))

    async def decide(self, context: RequestContext, kind: str, x: Array, options: Options) -> Decisions:
        """The router's decisions, and who is away and why."""
        names = context.router.names
        if options.over is not None and not options.why:
            raise FeddrmError("over names the client that why=true compares with: give it, too, or leave over out")
        for name in (*options.without, *([] if options.over is None else [options.over])):
            if name not in names:
                raise FeddrmError(f"unknown client '{name[:64]}' {listing(names)}")
        away = self.upstreams.away(names, options.without, context.router.fit)
        available = tuple(number not in away for number in range(len(names)))
        rule, coverage = options.rule or self.settings.rule, options.coverage or self.settings.coverage
        why = options.over or "" if options.why else None
        query = RouterQuery(kind, x, rule, coverage, available, self._max_away(options), why)
        decisions = await context.router.batcher(query, len(x))
        decisions.away = away
        began, featured, finished = decisions.times
        if featured > began:
            add_span("features", began, featured)
        add_span("decision", featured, finished)
        if self.drift is not None and context.router is self.router:
            self.drift.add(context.router, decisions)
        if (challenger := self.artifacts.challenger) is not None and not challenger.share:
            names = challenger.loaded.names
            others = self.upstreams.away(names, options.without, challenger.loaded.fit)
            mask = tuple(number not in others for number in range(len(names)))
            challenger.compare(query._replace(available=mask, why=None), context.router, decisions)
        return decisions

    def _max_away(self, options: Options) -> float:
        return self.settings.max_away if options.max_away is None else options.max_away

    async def ask(
        self, context: RequestContext, kind: str, x: Array, decisions: Decisions, options: PredictOptions
    ) -> tuple[Decisions, list[SampleAnswers], ApiError | None]:
        """The decisions after asking, the clients' answers to every sample, and an error if a sample could get none.

        No client is asked where the router abstains, unless ``abstain="answer"``. Where clients fail, the router
        abstains after the fact if they hold too much of the probability, together with those that were away.
        """
        names, answer = context.router.names, options.abstain == "answer"
        may_lose = self._may_lose(decisions, options)
        probabilities = decisions.probabilities.tolist()
        asked = [i for i, reason in enumerate(decisions.reason) if answer or not reason]
        misses = self._label_misses(decisions, options)
        replies = await ask_clients(
            kind,
            x[asked],
            [
                Question(decisions.rankings[i], probabilities[i], math.inf if answer else may_lose[i], misses[i])
                for i in asked
            ],
            [None if number in decisions.away else self.upstreams.get(name) for number, name in enumerate(names)],
            classes=len(self.classes),
            k=min(options.consult, len(names)),
            deadline=self.settings.deadline_seconds,
        )
        answers = [SampleAnswers() for _ in range(len(x))]
        lost = []
        for i, reply in zip(asked, replies, strict=True):
            answers[i] = reply
            self._count(reply, names)
            if reply.failed and reply.lost(probabilities[i]) > may_lose[i] and (reply.probabilities or not answer):
                lost.append(i)
        if lost:
            self.metrics.abstentions.labels(AWAY).inc(sum(not decisions.reason[i] for i in lost))
            decisions = decisions.without_answer(lost, AWAY)
        return decisions, answers, self._unanswered(kind, decisions, answers, names)

    @staticmethod
    def _label_misses(decisions: Decisions, options: PredictOptions) -> list[float | None]:
        """The miss of every sample's label set; None where there is none, because the router abstains, say."""
        there = 1 - decisions.probabilities[:, list(decisions.away)].sum(1)
        possible = (there >= SHARE) & ~decisions.abstain
        return [options.label_miss if given else None for given in possible.tolist()]

    def _may_lose(self, decisions: Decisions, options: Options) -> list[float]:
        """How much of every sample's probability failing clients may hold besides those that are away."""
        limit = self._max_away(options)
        if limit == 1:
            return [math.inf] * len(decisions.client)
        held: list[float] = decisions.probabilities[:, list(decisions.away)].sum(1).tolist()
        return [limit - share for share in held]

    @staticmethod
    def _unanswered(
        kind: str, decisions: Decisions, answers: Sequence[SampleAnswers], names: Sequence[str]
    ) -> ApiError | None:
        """An error for the first sample without an answer that is no abstention: nobody was there, or took it."""
        for reason, answer in zip(decisions.reason, answers, strict=True):
            remedies = {
                DECLINED: f"the clients do not take {kind} of this kind: send the sample itself",
                NO_SETS: "the clients have no scores for label sets: fit the router again ('feddrm fit-router RUN'), "
                "then start the clients again, or leave out label_miss",
            }
            declined = next((text for why, text in remedies.items() if set(answer.failed.values()) == {why}), None)
            if answer.probabilities or not (declined or reason in ("", DOWN)):
                continue
            if declined:
                return ApiError(422, declined)
            failed = {**decisions.away, **answer.failed}
            if list(failed.values()) == [LEFT_OUT] * len(names):
                return ApiError(422, "'without' names all clients: remove one from it")
            why = ", ".join(f"{names[client]}: {text}" for client, text in failed.items()) or "none is available"
            return ApiError(503, f"no client answered ({why}): try again in a while", {"Retry-After": "2"})
        return None

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
        if self.use_log is not None and context.action == "route":
            self.use_log.record(context, decisions)
        names = context.router.names
        now, milliseconds = time.time(), round(1e3 * (time.perf_counter() - context.started), 3)
        best, margins = decisions.client_probability.tolist(), decisions.margin.tolist()
        for (client, reason, answered, failed), places in _equal_decisions(decisions, answers, names).items():
            record = AuditRecord(
                now, context.request_id, context.caller, context.action, context.router.version,
                len(places), ",".join(map(str, places)), names[client] if client >= 0 else None,
                min([best[i] for i in places]), min([margins[i] for i in places]), int(reason != ""), reason,
                answered, failed, milliseconds, trace_id(),
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
    """The positions of equal decisions, by client, reason to abstain, who answered and who failed or was away."""
    answered: Iterable[str] = repeat("")
    failed: Iterable[str] = repeat("")
    if answers:
        answered, failed = zip(*(answer.summary(names) for answer in answers), strict=True)
    if decisions.away:
        away = [",".join(f"{names[c]}:{decisions.away[c]}" for c in passed) for passed in decisions.passed_over]
        failed = [",".join(filter(None, texts)) for texts in zip(away, failed, strict=False)]
    positions: dict[tuple[int, str, str, str], list[int]] = {}
    for place, key in enumerate(zip(decisions.client.tolist(), decisions.reason, answered, failed, strict=False)):
        positions.setdefault(key, []).append(place)
    return positions
