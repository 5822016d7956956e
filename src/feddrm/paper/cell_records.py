"""Results of finished cells: one small JSON file each, checked against the grid when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import broken, read_json
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.source_version import commit, source_hash
from feddrm.report.accuracy_measures import Measure, Score, read_scores

if TYPE_CHECKING:
    from feddrm.runs import Run

FORMAT = "feddrm-paper-cell-1"
REMEDY = "remove it and run the cell again"
DIGITS = 6
ACCURACIES = ("average_accuracy", "oracle_accuracy", "global_accuracy", "client_accuracy", "system_accuracy")
PUBLISHED_RULES = ("head_posterior", "vote")
BEFORE = "before"


@dataclass(frozen=True, eq=False)
class CellRecord:
    """The result of a finished cell."""

    path: Path
    content: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.content["cell"])

    @cached_property
    def scores(self) -> Mapping[Measure, Score]:
        return read_scores(self.content, self.path)

    @cached_property
    def before(self) -> Mapping[Measure, Score]:
        """The scores of the window before tuning starts; empty if the method does not tune."""
        return read_scores(self.content["before_tuning"] or {}, self.path)

    @property
    def routed(self) -> bool:
        """Whether the exact router has been fitted."""
        return Measure("system", "exact_density") in self.scores

    @property
    def seconds(self) -> float:
        """How long the cell took: wall time if it was run without interruption, training and evaluation otherwise."""
        seconds = self.content["seconds"]
        return float(seconds.get("wall") or seconds["total"])

    @property
    def hardware(self) -> str:
        return str(self.content["hardware"])

    def score(self, measure: str, rule: str | None = None) -> Score | None:
        """``average``, ``oracle``, ``global``, ``system``, ``client``, or one rule: ``system.exact_density``.

        Without a rule, system and client accuracy are the published ones: by the client head's most
        probable client if there is a head, by a vote otherwise. ``rule="before"`` selects the window
        before tuning starts.
        """
        kind, _, own = measure.partition(".")
        scores = self.before if rule == BEFORE else self.scores
        if own:
            return scores.get(Measure(kind, own))
        if kind not in ("system", "client"):
            return scores.get(Measure(kind)) if rule in (None, BEFORE) else None
        rules = PUBLISHED_RULES if rule in (None, BEFORE) else (rule,)
        return next((scores[Measure(kind, r)] for r in rules if Measure(kind, r) in scores), None)


def read_records(grid: Grid, folder: Path) -> dict[str, CellRecord]:
    """Every result in a folder, by cell. A result of another grid or another protocol is refused."""
    records = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        record = _read(path)
        cell = cell_of(grid, record)
        if cell is None:
            raise FeddrmError(f"{path} is no cell of the grid '{grid.name}': move it elsewhere")
        if (key := _deviation(cell, record)) is not None:
            raise FeddrmError(f"{path} departs from the protocol in '{key}': {REMEDY}")
        records[record.id] = record
    return records


def cell_of(grid: Grid, record: CellRecord) -> Cell | None:
    """The cell that a result belongs to. Further seeds of a known setting and method are allowed."""
    known = grid.by_id.get(record.id)
    if known is not None:
        return known
    content = record.content
    base = next((c for c in grid.cells if (c.setting, c.method) == (content["setting"], content["method"])), None)
    if base is None or not isinstance(content["seed"], int):
        return None
    cell = Cell(grid, base.setting, base.method, content["seed"], base.step)
    return cell if cell.id == record.id else None


def write_record(cell: Cell, run: Run, folder: Path, extra_seconds: Mapping[str, float | int | None]) -> CellRecord:
    """Write the result of a finished run. A run that did not follow the cell's protocol is refused."""
    summary = run.summary
    if summary is None:
        raise FeddrmError(f"{run.path} is not finished: run the cell again to go on")
    entries = run.metrics()
    content: dict[str, Any] = {
        "format": FORMAT,
        "grid": cell.grid.name,
        "cell": cell.id,
        "setting": cell.setting,
        "method": cell.method,
        "seed": cell.seed,
        **{key: summary.get(key) for key in ACCURACIES},
        "before_tuning": _before(cell, entries),
        "router": summary.get("router"),
        "votes": (run.folder.read_json(run.folder.evaluation_file) or {}).get("votes"),
        "rounds": summary["rounds"],
        "window": summary["window"],
        "seconds": {**summary["seconds"], **extra_seconds},
        "hardware": summary["hardware"],
        "versions": summary["versions"],
        "commit": commit(),
        "source": source_hash(),
        "date": summary["date"],
        "config": run.config,
        "curve": _curve(cell, entries),
    }
    record = CellRecord(folder / f"{cell.id}.json", {**_rounded(content), "config": dict(run.config)})
    if (key := _deviation(cell, record)) is not None:
        raise FeddrmError(f"{run.path} departs from the protocol in '{key}': it is not written to {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(record.path, record_bytes(record.content))
    return record


def record_bytes(content: Mapping[str, Any]) -> bytes:
    """A result as JSON, one key per line: small, and a change shows as a change of few lines."""
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in content.items())
    return f"{{\n{lines}\n}}\n".encode()


def _read(path: Path) -> CellRecord:
    record = CellRecord(path, read_json(path, REMEDY))
    content = record.content
    try:
        complete = content["format"] == FORMAT and {"setting", "method", "seed", "config", *ACCURACIES} <= set(content)
        if not complete or path.stem != record.id:
            raise KeyError("format")
        _ = record.scores, record.before, record.seconds, record.hardware
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise broken(path, f"no result of the form {FORMAT}", REMEDY) from error
    return record


def _deviation(cell: Cell, record: CellRecord) -> str | None:
    """The first part of the protocol that a result did not follow, or None.

    A setting that the result lacks was added later; its default changes nothing.
    """
    config = record.content["config"]
    for key, expected in cell.protocol().items():
        actual = config.get(key)
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            if key == "evaluation":  # one view is not written down
                expected, actual = ({"views": 1, **part} for part in (expected, actual))
            if actual.get("name") != expected.get("name"):
                return f"{key}.name"
            if other := [k for k in expected if k in actual and actual[k] != expected[k]]:
                return f"{key}.{other[0]}"
        elif actual != expected:
            return key
    if record.content["rounds"] != cell.rounds:
        return "rounds"
    return None if record.content["window"] == cell.window else "window"


def _before(cell: Cell, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if cell.before is None:
        return None
    from feddrm.evaluation import summarise

    first, last = cell.before
    lines = [{key: entry.get(key) for key in ACCURACIES} for entry in entries if first <= entry["round"] <= last]
    if len(lines) != last - first + 1:
        raise FeddrmError(f"{cell.id} evaluated {len(lines)} of the rounds {first} to {last}: run the cell again")
    return {"first": first, "last": last, **summarise(lines)}


def _curve(cell: Cell, entries: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """The regular evaluations and the last round; the other rounds of a window are left out."""
    every = cell.evaluation.every
    lines = [entry for entry in entries if entry["round"] % every == 0 or entry["round"] == cell.rounds]
    rule = next((r for r in PUBLISHED_RULES if lines and r in lines[-1]["system_accuracy"]), "vote")
    return {
        "round": [entry["round"] for entry in lines],
        "average": [entry["average_accuracy"] for entry in lines],
        "system": [entry["system_accuracy"].get(rule) for entry in lines],
        "loss": [entry["loss"] for entry in lines],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(v) for key, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value
