"""The training's metrics as Prometheus reads them, computed from the run's files: a restart loses no count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from feddrm.deploy.process_lock import running
from feddrm.deploy.server.federation_file import read_members
from feddrm.deploy.server.status import read_status, why_stopped
from feddrm.io.run_reader import RunReader

Values = Mapping[tuple[str, ...], float]  # by the values of the labels


def training_metrics(server: Path) -> bytes:
    """The metrics of a server's current run, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_TrainingCollector(server))
    return generate_latest(registry)


class _TrainingCollector(Collector):
    def __init__(self, server: Path) -> None:
        self.server = server

    def collect(self) -> Iterator[Metric]:
        run = read_members(self.server).run
        folder = RunReader(self.server / "runs" / run)
        history, finished = folder.metrics(), folder.summary() is not None
        alive = running(self.server) is not None
        works = alive and (finished or why_stopped(self.server, run, bool(history)) is None)
        yield _gauge("running", "0 once the run has failed, or its server has stopped", run, {(): float(works)})
        yield _gauge("finished", "1 once the run is finished", run, {(): float(finished)})
        yield _counter("rounds", "Finished rounds", run, {(): len(history)})
        yield _counter("seconds", "Seconds of all finished rounds", run, {(): sum(e["seconds"] for e in history)})
        yield _counter("bytes", "Bytes of rounds, by site and direction", run, _bytes(history), "site", "direction")
        yield _counter("answers", "Rounds by site and outcome", run, _outcomes(history), "site", "outcome")
        waiting = (read_status(self.server, run) or {}).get("waiting", {}) if alive else {}
        since: Values = {(name,): value for name, value in waiting.items()}
        yield _gauge("waiting_since", "Since when a site is waited for, in seconds since 1970", run, since, "site")
        if history:
            yield from _of_last_round(run, history)


def _of_last_round(run: str, history: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    last = history[-1]
    yield _gauge("round_seconds", "Seconds of the last round", run, {(): last["seconds"]})
    if last.get("loss") is not None:
        yield _gauge("loss", "Mean training loss of the last round", run, {(): last["loss"]})
    if "accuracy_before" in last:
        text = "Share of right answers to the sites' test samples, before the last round"
        yield _gauge("accuracy", text, run, {(): last["accuracy_before"]})
    spent: Values = {(name,): value for entry in history for name, value in entry.get("epsilon", {}).items()}
    yield _gauge("epsilon", "Privacy spent by a site, over all its runs", run, spent, "site")


def _bytes(history: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, ...]]:
    total: Counter[tuple[str, ...]] = Counter()
    for entry in history:
        for direction in ("sent", "received"):
            for name, count in entry[f"bytes_{direction}"].items():
                total[name, direction] += count
    return total


def _outcomes(history: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, ...]]:
    """Rounds by site and outcome: answered, or the first words of why not. Older runs do not say why."""
    total: Counter[tuple[str, ...]] = Counter()
    for entry in history:
        missing = {name: "missing" for name in entry["asked"] if name not in entry["answered"]}
        missing |= {name: reason.partition(":")[0] for name, reason in entry.get("missing", {}).items()}
        total.update({(name, "answered"): 1 for name in entry["answered"]})
        total.update(dict.fromkeys(missing.items(), 1))
    return total


def _gauge(name: str, text: str, run: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"feddrm_training_{name}", text, labels=["run", *labels]), run, values)


def _counter(name: str, text: str, run: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"feddrm_training_{name}", text, labels=["run", *labels]), run, values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, run: str, values: Values) -> Metric:
    for labels, value in values.items():
        family.add_metric([run, *labels], value)
    return family
