"""What Prometheus reads at /metrics."""

from __future__ import annotations

from collections import Counter as PerValue
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Every figure, each with a sentence on what it is."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("feddrm_requests", "Requests by path and status", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "feddrm_request_seconds", "From the first byte to the last", ["path"], buckets=SECONDS, registry=registry
        )
        self.decisions = Counter("feddrm_decisions", "Samples by the client chosen", ["client"], registry=registry)
        self.abstentions = Counter(
            "feddrm_abstentions", "Samples the router was not sure of", ["reason"], registry=registry
        )
        self.answers = Counter("feddrm_client_answers", "Samples answered", ["client"], registry=registry)
        self.failures = Counter(
            "feddrm_client_failures", "Samples asked in vain, by reason", ["client", "reason"], registry=registry
        )
        self.unanswered = Counter("feddrm_unanswered", "Samples that no client answered", registry=registry)
        self.available = Gauge("feddrm_client_available", "1 if the client can be asked", ["client"], registry=registry)
        self.circuit = Gauge(
            "feddrm_client_circuit_open", "1 while nobody asks the client", ["client"], registry=registry
        )
        self.batch_rows = Histogram("feddrm_batch_rows", "Samples computed at once", buckets=ROWS, registry=registry)
        self.waiting_rows = Gauge("feddrm_waiting_rows", "Samples in the queue", registry=registry)
        self.in_flight = Gauge("feddrm_in_flight", "Requests being answered", registry=registry)
        self.audit = Counter("feddrm_audit_records", "Decisions written or dropped", ["outcome"], registry=registry)
        self.audit_ok = Gauge("feddrm_audit_ok", "0 while the audit log cannot be written", registry=registry)
        self.reloads = Counter("feddrm_reloads", "Artifacts read anew, by outcome", ["outcome"], registry=registry)
        self.artifact = Gauge("feddrm_artifact", "1 for the version that is served", ["version"], registry=registry)
        self._children: dict[tuple[object, ...], Any] = {}

    def one(self, metric: Counter | Histogram, *labels: str) -> Any:
        """The figure with these labels; looked up once, for the library's own look-up takes a lock and its time."""
        key = (metric, *labels)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = metric.labels(*labels)
        return found

    def seen(self, path: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self.one(self.requests, path, str(status)).inc()
        self.one(self.seconds, path).observe(seconds)

    def decided(self, names: Sequence[str], clients: Sequence[int], reasons: Sequence[str]) -> None:
        """A batch has been decided: the clients chosen (-1 is nobody), and why the router would rather not."""
        for client, number in PerValue(clients).items():
            self.one(self.decisions, names[client] if client >= 0 else "nobody").inc(number)
        for reason, number in PerValue(reasons).items():
            if reason:
                self.one(self.abstentions, reason).inc(number)

    def page(self) -> bytes:
        return generate_latest(self.registry)
