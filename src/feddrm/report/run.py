"""A run folder, read into plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddrm.data.summary import DatasetSummary
from feddrm.errors import FeddrmError
from feddrm.io.text import read_json, read_yaml
from feddrm.report.measures import BY_RULE, KINDS, RULES, Measure, Score
from feddrm.report.run_records import REMEDY, broken, mapping, number, read_metrics

Scores = Mapping[Measure, Score]
Confusion = Mapping[str, np.ndarray[Any, np.dtype[np.int64]]]


@dataclass(frozen=True)
class Point:
    """One evaluated round."""

    round: int
    stage: str
    loss: float | None
    scores: Scores


@dataclass(frozen=True)
class ClientResult:
    """One client in the last evaluation; ``values`` are fractions by name, None where there is none."""

    name: str
    train: int | None
    test: int | None
    values: Mapping[str, float | None]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run folder says. ``summary`` is None while the run is unfinished."""

    folder: Path
    config: Mapping[str, Any]
    points: tuple[Point, ...]
    summary: Mapping[str, Any] | None
    final: Scores | None
    clients: tuple[ClientResult, ...] = ()
    confusion: Confusion | None = None
    evaluated_round: int | None = None
    reliability: Mapping[str, Any] | None = None
    portrait: DatasetSummary | None = None

    @property
    def name(self) -> str:
        return self.folder.name or str(self.folder)

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def method(self) -> str:
        return self._named("method")

    @property
    def data(self) -> str:
        """What the federation is called; all tables of users' own are loaded by one name."""
        return self._named("data") if self.portrait is None else self.portrait.name

    @property
    def data_key(self) -> str:
        """Equal for runs on the same samples, seen alike: by checksum, or by settings where no portrait was kept."""
        facts = {} if self.portrait is None else self.portrait.facts
        shifts = [client.get("shift") for client in facts.get("clients", ())]
        return str((facts.get("digest") or self.config.get("data"), shifts))

    @property
    def model(self) -> str:
        return self._named("model")

    @property
    def round(self) -> int | None:
        """The last evaluated round."""
        return self.points[-1].round if self.points else None

    @property
    def rounds(self) -> int | None:
        """How many rounds the configuration asks for."""
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
        """The summary's figures, or those of the last evaluated round where there is no summary yet."""
        return self.final if self.final is not None else self.points[-1].scores

    def curve(self, measure: Measure) -> tuple[list[int], list[float]]:
        """Rounds and values of one accuracy, where it was measured."""
        found = [(p.round, p.scores[measure].mean) for p in self.points if measure in p.scores]
        return [r for r, _ in found], [v for _, v in found]

    def _named(self, key: str) -> str:
        value = self.config.get(key)
        if isinstance(value, Mapping):
            value = value.get("name")
        return "?" if value is None else str(value)

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run folder; what is missing or broken is named."""
        folder = folder.resolve()
        if folder.is_file():
            raise FeddrmError(f"'{folder}' is a file: name the folder that 'feddrm train --out' wrote")
        if not folder.is_dir():
            raise FeddrmError(f"there is no folder '{folder}': name the folder that 'feddrm train --out' wrote")
        if not (folder / "config.yaml").is_file():
            raise FeddrmError(f"'{folder}' is not a run (no config.yaml): name the folder that 'feddrm train' wrote")
        points = _read_points(folder / "metrics.jsonl")
        summary = read_json(folder / "summary.json", REMEDY) if (folder / "summary.json").exists() else None
        if summary is None and not points:
            raise FeddrmError(
                f"run '{folder}' has nothing to report yet (no summary.json, no evaluated round in metrics.jsonl): "
                "train it at least to its first evaluation"
            )
        evaluation = read_json(folder / "evaluation.json", REMEDY) if (folder / "evaluation.json").exists() else {}
        where = folder / "evaluation.json"
        return cls(
            folder=folder,
            config=read_yaml(folder / "config.yaml", REMEDY),
            points=points,
            summary=summary,
            final=None if summary is None else read_scores(summary, folder / "summary.json"),
            clients=_read_clients(evaluation, where),
            confusion=_read_confusion(evaluation, where),
            evaluated_round=evaluation.get("round"),
            reliability=_read_reliability(evaluation, where),
            portrait=DatasetSummary.read(folder) if (folder / "data.json").exists() else None,
        )


def read_scores(entry: Mapping[str, Any], path: Path) -> dict[Measure, Score]:
    """Every accuracy in a summary or a metrics line, whatever rules it knows; null and absent are left out."""
    found: dict[Measure, Score | None] = {}
    for kind in KINDS:
        key = f"{kind}_accuracy"
        value = entry.get(key)
        if kind in BY_RULE:
            rules = mapping(value, path, key)
            found |= {Measure(kind, rule): _score(given, path, f"{key}.{rule}") for rule, given in rules.items()}
        else:
            found[Measure(kind)] = _score(value, path, key)
    scores = {measure: score for measure, score in found.items() if score is not None}
    # The global model stands under both names where it answers for the whole system: show it once.
    pooled = scores.get(Measure("system", "global"))
    if pooled is not None and scores.setdefault(Measure("global"), pooled) == pooled:
        del scores[Measure("system", "global")]
    return scores


def _score(value: Any, path: Path, what: str) -> Score | None:
    if isinstance(value, dict):
        mean, std = number(value.get("mean"), path, f"{what}.mean"), number(value.get("std"), path, f"{what}.std")
    else:
        mean, std = number(value, path, what), None
    if mean is None:
        return None
    if not -1e-6 <= mean <= 1 + 1e-6:
        raise broken(path, f"{what} should be a fraction between 0 and 1, found {mean:g}")
    return Score(mean, std)


def _read_points(path: Path) -> tuple[Point, ...]:
    if not path.exists():
        return ()
    # A run resumed after a crash may evaluate a round again: the later line counts.
    entries = {entry["round"]: entry for entry in read_metrics(path)}
    return tuple(
        Point(r, str(e.get("stage") or "train"), number(e.get("loss"), path, "loss"), read_scores(e, path))
        for r, e in sorted(entries.items())
    )


def _read_clients(evaluation: Mapping[str, Any], path: Path) -> tuple[ClientResult, ...]:
    listed = evaluation.get("per_client") or []
    if not isinstance(listed, list) or not all(isinstance(e, dict) and "name" in e for e in listed):
        raise broken(path, "per_client should be a list of objects with a 'name'")
    results = []
    for entry in listed:
        plain = {k: v for k, v in entry.items() if not isinstance(v, str | list | dict)}
        values = {_client_key(key): number(value, path, f"per_client.{key}") for key, value in plain.items()}
        train, test = (None if (n := values.pop(part, None)) is None else int(n) for part in ("train", "test"))
        results.append(ClientResult(str(entry["name"]), train, test, values))
    return tuple(results)


def _client_key(key: str) -> str:
    """One spelling: ``own``, ``vote``, ``head_density``, ``recall_density``, ``train``, ``test``."""
    key = key.removesuffix("_accuracy").removesuffix("_samples")
    if key.endswith("_recall"):
        return f"recall_{key.removesuffix('_recall')}"
    return f"head_{key}" if f"head_{key}" in RULES else key


def _read_confusion(evaluation: Mapping[str, Any], path: Path) -> Confusion:
    matrices = {}
    for rule, rows in mapping(evaluation.get("confusion"), path, "confusion").items():
        if rows is None:
            continue
        try:
            counts = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        except (ValueError, TypeError, OverflowError) as error:
            raise broken(path, f"confusion.{rule} is not a table of counts") from error
        clients = len(evaluation.get("per_client") or counts)
        if counts.shape != (clients, clients) or (counts < 0).any():
            raise broken(path, f"confusion.{rule} should be {clients} by {clients} counts")
        matrices[rule] = counts
    return matrices


def _read_reliability(evaluation: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    """Counts, mean confidence and accuracy per bin of the exact router's confidence."""
    if evaluation.get("reliability") is None:
        return None
    curve = mapping(evaluation["reliability"], path, "reliability")
    columns = [curve.get(key) for key in ("count", "confidence", "accuracy")]
    if not all(isinstance(c, list) and all(isinstance(v, int | float) for v in c) for c in columns):
        raise broken(path, "reliability should have lists of numbers: count, confidence, accuracy")
    if len({len(c) for c in columns if isinstance(c, list)}) != 1:
        raise broken(path, "reliability's lists should be of one length")
    return curve
