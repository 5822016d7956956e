"""Finished cells: one small JSON each, checked against the grid before anything is made of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import feddrm
from feddrm.engine import write_atomically
from feddrm.errors import FeddrmError
from feddrm.evaluation import summarise
from feddrm.paper.grid import Cell, Grid
from feddrm.report.measures import Measure, Score
from feddrm.report.run import read_scores
from feddrm.runs import Run

FORMAT = "feddrm-paper-cell-1"
DIGITS = 6
NOTES = "notes.yaml"
KEEP = ("average_accuracy", "oracle_accuracy", "global_accuracy", "client_accuracy", "system_accuracy")
PUBLISHED_RULES = ("head_posterior", "vote")
BEFORE = "before"


@dataclass(frozen=True, eq=False)
class Record:
    """What a finished cell says."""

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
        """The window before tuning starts; empty where nothing is tuned."""
        return read_scores(self.content["before_tuning"] or {}, self.path)

    @property
    def routed(self) -> bool:
        """Whether the exact router has been fitted."""
        return Measure("system", "exact_density") in self.scores

    @property
    def seconds(self) -> float:
        """What the cell took, wall clock where it was run in one go."""
        spent = self.content["seconds"]
        return float(spent.get("wall") or spent["total"])

    @property
    def hardware(self) -> str:
        return str(self.content["hardware"])

    def score(self, measure: str, rule: str | None = None) -> Score | None:
        """``average``, ``oracle``, ``global``, ``system``, ``client``, or one rule: ``system.exact_density``.

        Without a rule, system and client accuracy are the published ones: by the client head's most
        probable client where there is a head, by a vote otherwise. ``rule="before"`` asks the window
        before tuning starts.
        """
        kind, _, own = measure.partition(".")
        found = self.before if rule == BEFORE else self.scores
        if own:
            return found.get(Measure(kind, own))
        if kind not in ("system", "client"):
            return found.get(Measure(kind)) if rule in (None, BEFORE) else None
        rules = PUBLISHED_RULES if rule in (None, BEFORE) else (rule,)
        return next((found[Measure(kind, r)] for r in rules if Measure(kind, r) in found), None)


def read_records(grid: Grid, folder: Path) -> dict[str, Record]:
    """Every result in a folder by cell; one that is not of this grid or not of its protocol is refused."""
    found = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        record = _read(path)
        cell = cell_of(grid, record)
        if cell is None:
            raise FeddrmError(f"{path} is no cell of the grid '{grid.name}': move it elsewhere")
        if (key := _departs(cell, record)) is not None:
            raise FeddrmError(f"{path} departs from the protocol in '{key}': remove it and run the cell again")
        found[record.id] = record
    return found


def cell_of(grid: Grid, record: Record) -> Cell | None:
    """The cell a result belongs to; further seeds of a known setting and method are welcome."""
    known = grid.by_id.get(record.id)
    if known is not None:
        return known
    content = record.content
    base = next((c for c in grid.cells if (c.setting, c.method) == (content["setting"], content["method"])), None)
    if base is None or not isinstance(content["seed"], int):
        return None
    cell = Cell(grid, base.setting, base.method, content["seed"], base.step)
    return cell if cell.id == record.id else None


def write_record(cell: Cell, run: Run, folder: Path, extra_seconds: Mapping[str, float | int | None]) -> Record:
    """Distil a finished run into its JSON; a run that is not of the cell's protocol is refused."""
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
        **{key: summary.get(key) for key in KEEP},
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
    record = Record(folder / f"{cell.id}.json", {**_rounded(content), "config": dict(run.config)})
    if (key := _departs(cell, record)) is not None:
        raise FeddrmError(f"{run.path} departs from the protocol in '{key}': it is not written to {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in record.content.items())
    write_atomically(record.path, f"{{\n{lines}\n}}\n".encode())
    return record


def _read(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        record = Record(path, content)
        complete = content["format"] == FORMAT and {"setting", "method", "seed", "config", *KEEP} <= set(content)
        if not complete or path.stem != record.id:
            raise KeyError("format")
        _ = record.scores, record.before, record.seconds, record.hardware
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FeddrmError(f"{path} is no result of this form ({FORMAT}): remove it and run the cell again") from error
    return record


def _departs(cell: Cell, record: Record) -> str | None:
    """The first part of the protocol that a result did not follow.

    A setting within a part that the result does not know came later, and its default changes nothing.
    """
    got = record.content["config"]
    for key, want in cell.protocol().items():
        have = got.get(key)
        if isinstance(want, Mapping) and isinstance(have, Mapping):
            if have.get("name") != want.get("name"):
                return f"{key}.name"
            if other := [k for k in want if k in have and have[k] != want[k]]:
                return f"{key}.{other[0]}"
        elif have != want:
            return key
    if record.content["rounds"] != cell.plan.rounds:
        return "rounds"
    return None if record.content["window"] == cell.window else "window"


def _before(cell: Cell, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if cell.before is None:
        return None
    first, last = cell.before
    lines = [{key: entry.get(key) for key in KEEP} for entry in entries if first <= entry["round"] <= last]
    if len(lines) != last - first + 1:
        raise FeddrmError(f"{cell.id} evaluated {len(lines)} of the rounds {first} to {last}: run the cell again")
    return {"first": first, "last": last, **summarise(lines, len(lines))}


def _curve(cell: Cell, entries: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """A few points of the way: what was evaluated anyway, of the windows only the last round."""
    every = cell.evaluation.every
    lines = [entry for entry in entries if entry["round"] % every == 0 or entry["round"] == cell.plan.rounds]
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


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the source tree, read without git; None where there is none.

    ``FEDDRM_COMMIT`` says it where a copy of the tree has moved on from the commit it came with.
    """
    if said := os.environ.get("FEDDRM_COMMIT"):
        return said
    for folder in Path(feddrm.__file__).resolve().parents:
        if (folder / ".git").exists():
            return _head(folder / ".git")
    return None


def _head(git: Path) -> str | None:
    try:
        if git.is_file():  # a worktree: its own HEAD, the branches of the main one
            git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head
        ref = head.removeprefix("ref:").strip()
        common = git / "commondir"
        home = (git / common.read_text().strip()).resolve() if common.exists() else git
        if (home / ref).exists():
            return (home / ref).read_text().strip()
        packed = (home / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), None)
    except OSError:
        return None


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Twelve digits of the SHA-256 of the package's source: it says what ran even where there is no git."""
    root = Path(feddrm.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
