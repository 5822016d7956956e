"""A run folder, read into plain values and checked; an unusable file is named with the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feddrm.errors import FeddrmError
from feddrm.io import text
from feddrm.io.dataset_summary import DatasetSummary
from feddrm.io.run_files import CONFIG, EVALUATION, FACTS, METRICS, ROUTER_FOLDER, SUMMARY
from feddrm.io.staging import Snapshot, read_whole
from feddrm.report.accuracy_measures import (
    ANSWERS,
    METRIC_LABELS,
    QUANTITIES,
    REMEDY,
    RULES,
    AnswerMetric,
    Measure,
    Score,
    broken_run,
    read_mapping,
    read_number,
    read_scores,
)

Scores = Mapping[Measure, Score]
Metrics = Mapping[tuple[str, str], AnswerMetric]  # by whose answers, and the name of the metric
Counts = np.ndarray[Any, np.dtype[np.int64]]
Confusion = Mapping[str, Counts]


@dataclass(frozen=True)
class EvaluatedRound:
    """One evaluated round."""

    round: int
    stage: str
    loss: float | None
    scores: Scores
    sent: float | None = None  # bytes of all rounds until then


class SentBytes(NamedTuple):
    """What a training has sent, from the server and to it together; ``each`` by one client in one training round."""

    each: float | None
    total: float


@dataclass(frozen=True)
class ClientResult:
    """One client in the last evaluation; ``values`` are fractions by name, or None."""

    name: str
    train: int | None
    test: int | None
    values: Mapping[str, float | None]
    events: int | None = None  # among the test samples, of survival


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The content of a run folder. ``summary`` is None while the run is unfinished."""

    folder: Path
    config: Mapping[str, Any]
    points: tuple[EvaluatedRound, ...]
    summary: Mapping[str, Any] | None
    final: Scores | None
    clients: tuple[ClientResult, ...] = ()
    sent: SentBytes | None = None  # older and unfinished runs have none, nor fits without rounds
    metrics: Metrics = field(default_factory=dict)  # older runs have none
    confusion: Confusion | None = None
    class_confusion: Confusion | None = None
    evaluated_round: int | None = None
    reliability: Mapping[str, Any] | None = None
    answer_reliability: Mapping[str, Any] | None = None
    dataset: DatasetSummary | None = None

    @property
    def name(self) -> str:
        return self.folder.name or str(self.folder)

    @property
    def quantity(self) -> str:
        """What its figures measure: accuracy, or c_index for survival."""
        return "accuracy" if self.dataset is None or "task" not in self.dataset.facts else "c_index"

    @property
    def noun(self) -> str:
        """The same in words."""
        return QUANTITIES[self.quantity]

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def method(self) -> str:
        return self._named("method")

    @property
    def data(self) -> str:
        """The name of the federation, from its summary if there is one: the setting calls all users' tables alike."""
        return self._named("data") if self.dataset is None else self.dataset.name

    @property
    def data_key(self) -> str:
        """Equal for runs on the same samples with the same shifts: by checksum, or by settings without a summary."""
        facts = {} if self.dataset is None else self.dataset.facts
        shifts = [client.get("shift") for client in facts.get("clients", ())]
        return str((facts.get("digest") or self.config.get("data"), shifts))

    @property
    def model(self) -> str:
        return self._named("model")

    @property
    def seed(self) -> Any:
        """The seed of the training."""
        return self.config.get("seed")

    @property
    def data_seed(self) -> Any:
        """The seed of the division of the data; None if the data have none."""
        data = self.config.get("data")
        return data.get("seed") if isinstance(data, Mapping) else None

    @property
    def round(self) -> int | None:
        """The last evaluated round."""
        return self.points[-1].round if self.points else None

    @property
    def rounds(self) -> int | None:
        """The number of rounds in the configuration."""
        value = self.config.get("rounds")
        return value if isinstance(value, int) else None

    @property
    def status(self) -> str:
        if self.finished:
            return "finished"
        of = "" if self.rounds is None else f" of {self.rounds}"
        return f"unfinished: round {self.round}{of}"

    @cached_property
    def scores(self) -> Scores:
        """The figures of the summary, or of the last evaluated round while there is no summary."""
        if self.final is not None:
            return self.final
        # A private run has no figures of a round, a large one not of every round.
        return next((point.scores for point in reversed(self.points) if point.scores), self.points[-1].scores)

    def averaged(self, measure: Measure) -> int:
        """Of how many last rounds a figure is the mean. Of one, if it was measured after the last round alone."""
        window = (self.summary or {}).get("window")
        return window if self.scores[measure].std is not None and isinstance(window, int) else 1

    def after_last_round(self, measure: Measure) -> float:
        """The figure after the last round; that of the summary if the round has none."""
        last = self.points[-1].scores if self.points else {}
        return last.get(measure, self.scores[measure]).mean

    def curve(self, measure: Measure) -> tuple[list[int], list[float]]:
        """Rounds and values of one accuracy, where it was measured."""
        measured = [(p.round, p.scores[measure].mean) for p in self.points if measure in p.scores]
        return [round for round, _ in measured], [value for _, value in measured]

    def _named(self, key: str) -> str:
        value = self.config.get(key)
        if isinstance(value, Mapping):
            value = value.get("name")
        return "?" if value is None else str(value)

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run folder. An error names what is missing or broken."""
        folder = folder.resolve()
        if folder.is_file():
            raise FeddrmError(f"'{folder}' is a file: name the folder that 'feddrm train --out' wrote")
        if not folder.is_dir():
            raise FeddrmError(f"there is no folder '{folder}': name the folder that 'feddrm train --out' wrote")
        if not (folder / CONFIG).is_file():
            raise FeddrmError(f"'{folder}' is not a run (no {CONFIG}): name the folder that 'feddrm train' wrote")
        return read_whole(folder / ROUTER_FOLDER, lambda now: cls._read(folder, now))

    @classmethod
    def _read(cls, folder: Path, now: Snapshot) -> RunRecord:
        points = _read_points(folder / METRICS)
        summary = now.read(folder / SUMMARY, _read_json) if now.has(folder / SUMMARY) else None
        if summary is None and not points:
            raise FeddrmError(
                f"run '{folder}' has nothing to report yet (no {SUMMARY}, no evaluated round in {METRICS}): "
                "train it at least to its first evaluation"
            )
        path = folder / EVALUATION
        evaluation = now.read(path, _read_json) if now.has(path) else {}
        return cls(
            folder=folder,
            config=text.read_yaml(folder / CONFIG, REMEDY),
            points=points,
            summary=summary,
            final=None if summary is None else read_scores(summary, folder / SUMMARY),
            clients=_read_clients(evaluation, path),
            sent=_read_sent((summary or {}).get("communication"), folder / SUMMARY),
            metrics=_read_metrics((summary or {}).get("metrics"), folder / SUMMARY),
            confusion=_read_confusion(evaluation, path, "confusion", len(evaluation.get("per_client") or ()) or None),
            class_confusion=_read_confusion(evaluation, path, "class_confusion"),
            evaluated_round=evaluation.get("round"),
            reliability=_read_reliability(evaluation, path, "reliability"),
            answer_reliability=_read_reliability(evaluation, path, "answer_reliability"),
            dataset=DatasetSummary.read(folder) if (folder / FACTS).exists() else None,
        )


def _read_json(path: Path) -> dict[str, Any]:
    return text.read_json(path, REMEDY)


def _read_points(path: Path) -> tuple[EvaluatedRound, ...]:
    if not path.exists():
        return ()
    entries = {}
    for line, entry in enumerate(text.read_json_lines(path, REMEDY), start=1):
        if isinstance(entry.get("round"), bool) or not isinstance(entry.get("round"), int):
            raise broken_run(path, f"line {line} has no whole number 'round'")
        entries[entry["round"]] = entry  # a run resumed after a crash may evaluate a round again: the later line counts
    return tuple(
        EvaluatedRound(
            r,
            str(e.get("stage") or "train"),
            read_number(e.get("loss"), path, "loss"),
            read_scores(e, path),
            _read_total(read_mapping(e.get("communication"), path, "communication"), path),
        )
        for r, e in sorted(entries.items())
    )


def _read_clients(evaluation: Mapping[str, Any], path: Path) -> tuple[ClientResult, ...]:
    listed = evaluation.get("per_client") or []
    if not isinstance(listed, list) or not all(isinstance(e, dict) and "name" in e for e in listed):
        raise broken_run(path, "per_client should be a list of objects with a 'name'")
    results = []
    for entry in listed:
        plain = {k: v for k, v in entry.items() if not isinstance(v, str | list | dict)}
        values = {_client_key(key): read_number(value, path, f"per_client.{key}") for key, value in plain.items()}
        train, test, events = (
            None if (n := values.pop(part, None)) is None else int(n) for part in ("train", "test", "events")
        )
        results.append(ClientResult(str(entry["name"]), train, test, values, events))
    return tuple(results)


def _client_key(key: str) -> str:
    """One spelling for old and new files: ``own``, ``vote``, ``head_density``, ``recall_density``, ``train``."""
    key = key.removesuffix("_accuracy").removesuffix("_samples")
    if key.endswith("_recall"):
        return f"recall_{key.removesuffix('_recall')}"
    return f"head_{key}" if f"head_{key}" in RULES else key


def _read_sent(entry: Any, path: Path) -> SentBytes | None:
    """The total of a training, and what one client gets and sends in one round that does not tune."""
    figures = read_mapping(entry, path, "communication")
    total = _read_total(figures, path)
    if total is None:
        return None
    stages = read_mapping(figures.get("stages"), path, "communication.stages")
    training = read_mapping(stages.get("train"), path, "communication.stages.train")
    each = [read_number(training.get(f"bytes_per_{way}"), path, f"bytes_per_{way}") for way in ("download", "upload")]
    return SentBytes(None if None in each else sum(filter(None, each)), total)


def _read_total(figures: Mapping[str, Any], path: Path) -> float | None:
    return read_number(figures.get("bytes_total"), path, "communication.bytes_total")


def _read_metrics(listed: Any, path: Path) -> Metrics:
    """The known metrics of the last round's answers; those that are null are left out."""
    metrics = {}
    for answers, figures in read_mapping(listed, path, "metrics").items():
        for name, figure in read_mapping(figures, path, f"metrics.{answers}").items():
            what = f"metrics.{answers}.{name}"
            parts = read_mapping(figure, path, what)
            value = read_number(parts.get("value"), path, what)
            if value is None or answers not in ANSWERS or name not in METRIC_LABELS:
                continue
            interval = _read_interval(parts, path, what)
            error = read_number(parts.get("error_bound"), path, what)
            client = str(parts.get("name", ""))
            metrics[answers, name] = AnswerMetric(value, interval, name=client, error_bound=error)
    return metrics


def _read_interval(parts: Mapping[str, Any], path: Path, what: str) -> tuple[float, float] | None:
    """None if the run says that there is none."""
    interval = parts.get("interval", ())
    if interval is None:
        return None
    bounds = [read_number(bound, path, what) for bound in interval] if isinstance(interval, list) else []
    if len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
        raise broken_run(path, f"{what} should have an interval of two numbers")
    return bounds[0], bounds[1]


def _read_confusion(evaluation: Mapping[str, Any], path: Path, key: str, size: int | None = None) -> Confusion:
    """Square tables of counts by rule, or by whose answers; all of one size."""
    matrices = {}
    for rule, rows in read_mapping(evaluation.get(key), path, key).items():
        if rows is None:
            continue
        try:
            counts = _whole(rows, size or 0) if isinstance(rows, Mapping) else np.asarray(rows, dtype=np.int64)
            counts = np.atleast_1d(counts)
        except (ValueError, TypeError, OverflowError, KeyError, IndexError) as error:
            raise broken_run(path, f"{key}.{rule} is not a table of counts") from error
        size = size or len(counts)
        if counts.shape != (size, size) or (counts < 0).any():
            raise broken_run(path, f"{key}.{rule} should be {size} by {size} counts")
        matrices[rule] = counts
    return matrices


def _whole(cells: Mapping[str, Any], size: int) -> Counts:
    """The matrix of many clients, of which the file has the cells that are not zero."""
    places, counts = np.asarray([cells["from"], cells["to"]]), np.zeros((size, size), dtype=np.int64)
    if (places < 0).any():
        raise IndexError
    np.add.at(counts, tuple(places), np.asarray(cells["count"], dtype=np.int64))
    return counts


def _read_reliability(evaluation: Mapping[str, Any], path: Path, what: str) -> Mapping[str, Any] | None:
    """Count, mean confidence and accuracy for every bin of the exact router's, or the answers', confidence."""
    if evaluation.get(what) is None:
        return None
    curve = read_mapping(evaluation[what], path, what)
    columns = [curve.get(key) for key in ("count", "confidence", "accuracy")]
    if not all(isinstance(c, list) and all(isinstance(v, int | float) for v in c) for c in columns):
        raise broken_run(path, f"{what} should have lists of numbers: count, confidence, accuracy")
    if len({len(c) for c in columns if isinstance(c, list)}) != 1:
        raise broken_run(path, f"the lists of {what} should have one length")
    return curve
