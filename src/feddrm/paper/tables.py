"""The paper's tables as data: ours, the paper's, the difference; what is missing stays missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any, Literal

from feddrm.errors import SettingError
from feddrm.paper.cell_records import BEFORE, Record, cell_of
from feddrm.paper.grid import Grid
from feddrm.registry import nearest
from feddrm.report.measures import BY_RULE, RULES, Score, rule_label

Gap = Literal["", "missing", "no router", "none"]
BEYOND = "beyond"
WITHOUT_ROUTER = ("vote", "head_density", "head_posterior", "global")  # every other rule needs the exact router


@dataclass(frozen=True)
class Entry:
    """One place of a table. ``gap`` says why there is no score: not run yet, no router yet, or no such thing."""

    cell: str
    measure: str
    ours: Score | None
    paper: Score | None
    gap: Gap

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        if self.ours is None or self.paper is None:
            return None
        return 100 * (self.ours.mean - self.paper.mean)


@dataclass(frozen=True)
class Row:
    """One method, or one value of what is varied; ``published`` where the paper has this row too."""

    label: str
    entries: tuple[Entry, ...]
    line: bool = False  # a rule above it
    published: bool = True


@dataclass(frozen=True)
class Table:
    """A titled table; ``groups`` stand above the columns where there are any."""

    title: str
    columns: tuple[str, ...]
    groups: tuple[str, ...]
    rows: tuple[Row, ...]

    def best(self, row: int, column: int) -> bool:
        """Whether an entry leads its column, to the digits shown; alone it leads nothing."""
        shown = [_digits(score) for r in self.rows if (score := r.entries[column].ours) is not None]
        ours = self.rows[row].entries[column].ours
        return ours is not None and len(shown) > 1 and _digits(ours) == max(shown)

    def entries(self) -> list[tuple[Row, str, Entry]]:
        """Every entry with its row and the full name of its column."""
        names = [f"{group}, {name}" if group else name for group, name in zip(self.groups, self.columns, strict=True)]
        return [(row, name, entry) for row in self.rows for name, entry in zip(names, row.entries, strict=True)]

    def as_published(self) -> Table | None:
        """The paper's own figures in place of ours; None where it gives none."""
        rows = tuple(
            replace(row, entries=tuple(replace(entry, ours=entry.paper) for entry in row.entries))
            for row in self.rows
            if row.published
        )
        return replace(self, rows=rows) if any(e.ours is not None for row in rows for e in row.entries) else None

    @property
    def count(self) -> tuple[int, int]:
        """How many of the entries that could be there are."""
        wanted = [entry for _, _, entry in self.entries() if entry.gap != "none"]
        return sum(entry.ours is not None for entry in wanted), len(wanted)


def table_names(grid: Grid) -> list[str]:
    """What :func:`tables` knows."""
    return [*grid.content["tables"], BEYOND]


def tables(grid: Grid, name: str, records: Mapping[str, Record]) -> list[Table]:
    """The parts of a named table; ``beyond`` has one for every setting, with everything that was measured."""
    if name == BEYOND:
        return [_beyond(grid, setting, records) for setting in grid.content["settings"]]
    if name not in grid.content["tables"]:
        known = table_names(grid)
        raise SettingError(f"unknown table '{name}'{nearest(name, known)} (known: {', '.join(known)})")
    return [_table(grid, part, records) for part in grid.content["tables"][name]]


@lru_cache(maxsize=1)
def published() -> Mapping[str, Any]:
    """The paper's figures, in percent."""
    content: dict[str, Any] = json.loads((files("feddrm.paper") / "published.json").read_text())
    return content


def _table(grid: Grid, part: Mapping[str, Any], records: Mapping[str, Record]) -> Table:
    columns = part["columns"]
    rows = []
    for row in part["rows"]:
        entries = tuple(_entry(grid, row, column, part.get("published"), records) for column in columns)
        if any(entry.gap != "none" for entry in entries):
            label = row.get("label") or grid.label("methods", row["method"])
            rows.append(Row(label, entries, bool(row.get("line")), bool(row.get("published", True))))
    labels = tuple(column.get("label") or grid.label("settings", column["setting"]) for column in columns)
    return Table(part["title"], labels, tuple(column.get("group", "") for column in columns), tuple(rows))


def _entry(
    grid: Grid, row: Mapping[str, Any], column: Mapping[str, Any], source: str | None, records: Mapping[str, Record]
) -> Entry:
    setting, method = row.get("setting") or column["setting"], row["method"]
    measure, rule = column["measure"], row.get("rule")
    cell = f"{setting}_{method}_seed{grid.seed}"
    theirs = _published(grid, source, setting, measure, method) if source and row.get("published", True) else None
    if rule not in (None, BEFORE) and measure not in BY_RULE:  # a rule of routing changes nothing else
        return Entry(cell, measure, None, None, "none")
    record = records.get(cell)
    ours = None if record is None else record.score(measure, rule)
    return Entry(cell, measure, ours, theirs, _gap(measure, rule, record, ours))


def _gap(measure: str, rule: str | None, record: Record | None, ours: Score | None) -> Gap:
    asked = measure.partition(".")[2]
    by_router = bool(asked) and asked not in WITHOUT_ROUTER
    if ours is not None:
        return ""
    if by_router and rule == BEFORE:  # a router is fitted once, to what the run ended with
        return "none"
    if record is None:
        return "missing"
    return "no router" if by_router and not record.routed else "none"


def _published(grid: Grid, source: str, setting: str, measure: str, method: str) -> Score | None:
    table = published()[source]
    name = grid.content["methods"][method]["use"]["name"]
    if [setting, measure] not in table["columns"] or name not in table["rows"]:
        return None
    mean, std = table["rows"][name][table["columns"].index([setting, measure])]
    return Score(mean / 100, std / 100)


def _beyond(grid: Grid, setting: str, records: Mapping[str, Record]) -> Table:
    """Every method of one setting by every measure, the paper's and those it leaves out."""
    columns = [{"setting": setting, "measure": kind, "label": kind} for kind in ("average", "oracle", "global")]
    columns += [
        {"setting": setting, "measure": f"{kind}.{rule}", "label": rule_label(rule), "group": f"{kind.capitalize()}"}
        for kind in BY_RULE
        for rule in RULES
        if rule != "global" and (kind == "system" or rule.startswith(("head_", "exact_")))
    ]
    rows: list[dict[str, Any]] = []
    for cell in grid.cells:
        if cell.setting == setting and cell.seed == grid.seed:
            rows.append({"method": cell.method})
            if cell.before is not None:
                label = f"{grid.label('methods', cell.method)}, before tuning"
                rows.append({"method": cell.method, "rule": BEFORE, "label": label})
    part = {"title": f"{grid.label('settings', setting)}: everything measured", "rows": rows, "columns": columns}
    return _table(grid, part, records)


def seed_rows(grid: Grid, records: Mapping[str, Record], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Settings and methods with more than one seed: spread across seeds beside the spread across rounds.

    The first method of a setting is also held against every other one, seed by seed: how easy a
    division of the data is for both of them is then out of the comparison.
    """
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for cell in [*grid.cells, *(cell for r in records.values() if (cell := cell_of(grid, r)) is not None)]:
        if (record := records.get(cell.id)) is not None:
            found.setdefault(cell.setting, {}).setdefault(cell.method, {})[cell.seed] = record
    rows = []
    for setting, methods in found.items():
        first = next(iter(methods))
        for measure in measures:
            known = {
                method: {seed: score for seed, r in by_seed.items() if (score := r.score(measure)) is not None}
                for method, by_seed in methods.items()
            }
            for method, scores in known.items():
                label = grid.label("methods", method)
                spreads = [score.std for score in scores.values() if score.std is not None]
                rounds = fmean(spreads) if spreads else None
                rows.append((setting, label, measure, [score.mean for score in scores.values()], rounds, False))
                if method != first:
                    both = [score.mean - scores[seed].mean for seed, score in known[first].items() if seed in scores]
                    label = f"{grid.label('methods', first)} less {label}"
                    rows.append((setting, label, measure, both, None, True))
    return [
        {
            "setting": grid.label("settings", setting),
            "method": label,
            "measure": measure,
            "seeds": len(means),
            "mean": fmean(means),
            "across_seeds": stdev(means),
            "across_rounds": rounds,
            "paired": paired,
        }
        for setting, label, measure, means, rounds, paired in rows
        if len(means) > 1
    ]


def _digits(score: Score) -> float:
    return round(100 * score.mean, 2)
