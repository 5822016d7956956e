"""The metrics that Prometheus reads at /metrics."""

from __future__ import annotations

from collections import Counter as CountPerValue
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WRITTEN = ("written", "dropped")  # what happens to the records of a log


class Metrics:
    """All metrics of one gateway, each with its help text."""

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
            "feddrm_client_failures", "Samples that a client did not answer", ["client", "reason"], registry=registry
        )
        self.unanswered = Counter("feddrm_unanswered", "Samples that no client answered", registry=registry)
        self.available = Gauge("feddrm_client_available", "1 if the client can be asked", ["client"], registry=registry)
        self.circuit = Gauge(
            "feddrm_client_circuit_open", "1 while the client's circuit is open", ["client"], registry=registry
        )
        self.batch_rows = Histogram("feddrm_batch_rows", "Samples computed at once", buckets=ROWS, registry=registry)
        self.waiting_rows = Gauge("feddrm_waiting_rows", "Samples in the queue", registry=registry)
        self.in_flight = Gauge("feddrm_in_flight", "Requests being answered", registry=registry)
        self.audit = Counter("feddrm_audit_records", "Decisions written or dropped", ["outcome"], registry=registry)
        self.audit_ok = Gauge("feddrm_audit_ok", "0 while the audit log cannot be written", registry=registry)
        self.traces = Counter("feddrm_traces", "Requests recorded, or over the rate", ["result"], registry=registry)
        self.issuer_ok = Gauge(
            "feddrm_oidc_keys_ok", "0 while the keys of the tokens' issuer cannot be read", registry=registry
        )
        self.issuer_ok.set(1)
        self.reloads = Counter("feddrm_reloads", "Reloads of the artifact, by outcome", ["outcome"], registry=registry)
        self.artifact = Gauge("feddrm_artifact", "1 for the version that is served", ["version"], registry=registry)
        self.challenger = Gauge(
            "feddrm_challenger", "The share of requests that the challenger answers; 0: shadow", ["version"],
            registry=registry,
        )  # fmt: skip
        self.artifact_decisions = Counter(
            "feddrm_artifact_decisions", "Samples by artifact: decided or abstained", ["artifact", "result"],
            registry=registry,
        )  # fmt: skip
        self.shadow = Counter(
            "feddrm_shadow_decisions", "Samples that the shadow decided: same, changed, failed, dropped",
            ["artifact", "result"], registry=registry,
        )  # fmt: skip
        self.uses = Counter("feddrm_use_log_records", "Answers written or dropped", ["outcome"], registry=registry)
        self.outcomes = Counter(
            "feddrm_outcomes", "Reported outcomes: right, wrong, abstained", ["artifact", "result"], registry=registry
        )
        self.accuracy = Gauge(
            "feddrm_outcome_accuracy", "Of the latest 1,000 outcomes", ["artifact"], registry=registry
        )
        self.calibration_error = Gauge(
            "feddrm_outcome_calibration_error", "Of the latest 1,000 outcomes", ["artifact"], registry=registry
        )
        self.drift_windows = Counter(
            "feddrm_drift_windows", "Tests of 100 queries against the training data", ["result"], registry=registry
        )
        self.drift_p_value = Gauge("feddrm_drift_p_value", "Of the latest test of drift", registry=registry)
        self.drift_alarm = Gauge("feddrm_drift_alarm", "1 after an alarm in 2,000 queries", registry=registry)
        # From 0 on: an alarm sees an increase, and a series that begins with 1 has none.
        for counter, results in ((self.audit, WRITTEN), (self.uses, WRITTEN), (self.reloads, ("done", "failed"))):
            for result in results:
                counter.labels(result)
        self._children: dict[tuple[object, ...], Any] = {}

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._child(self.requests, path, str(status)).inc()
        self._child(self.seconds, path).observe(seconds)

    def observe_trace(self, result: str) -> None:
        """Count a request that was recorded, or over the rate."""
        self._child(self.traces, result).inc()

    def observe_decisions(
        self, artifact: str, names: Sequence[str], clients: Sequence[int], reasons: Sequence[str]
    ) -> None:
        """Count the decisions of a batch: the chosen clients (-1: none), and the reasons to abstain ("": none)."""
        for client, number in CountPerValue(clients).items():
            self._child(self.decisions, names[client] if client >= 0 else "nobody").inc(number)
        for reason, number in CountPerValue(reasons).items():
            self._child(self.artifact_decisions, artifact, "abstained" if reason else "decided").inc(number)
            if reason:
                self._child(self.abstentions, reason).inc(number)

    def set_outcomes(self, figures: Mapping[str, Mapping[str, Any]]) -> None:
        """Show the figures of the latest outcomes, by artifact."""
        for gauge, name in ((self.accuracy, "accuracy"), (self.calibration_error, "calibration_error")):
            gauge.clear()
            for artifact, values in figures.items():
                if values[name] is not None:
                    gauge.labels(artifact).set(values[name])

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _child(self, metric: Counter | Histogram, *labels: str) -> Any:
        """The metric with these labels, from a cache: the library's own look-up takes a lock and more time."""
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child
