"""The paper's claims, checked against the tables; and comparisons that the paper does not report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from feddrm.paper.cell_records import CellRecord
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import PaperTable, tables
from feddrm.report.accuracy_measures import Score

Status = Literal["holds", "does not hold", "open"]


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the evidence. One counterexample refutes it; missing cells leave it open.

    ``contradicted`` is the evidence against it in the paper's own tables, if there is any.
    """

    text: str
    status: Status
    evidence: str
    contradicted: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two ways to answer, side by side, in every setting."""

    text: str
    settings: tuple[str, ...]
    gains: Mapping[str, tuple[Score, Score]]

    @property
    def ahead(self) -> str:
        """In how many of the measured settings the first one is better."""
        return f"{sum(left.mean > right.mean for left, right in self.gains.values())} of {len(self.gains)}"

    def figures(self, setting: str) -> str:
        if setting not in self.gains:
            return "missing" if setting in self.settings else "–"
        left, right = self.gains[setting]
        bold = "**" if left.mean > right.mean else ""
        return f"{bold}{left.percent}{bold} : {right.percent}"


def verdicts(grid: Grid, records: Mapping[str, CellRecord]) -> list[Verdict]:
    """Check every claim of the grid."""
    checked = []
    for claim in grid.content["claims"]:
        table = tables(grid, claim["table"], records)[claim.get("part", 0)]
        status, evidence = KINDS[claim["kind"]](table, claim)
        published = table.as_published()
        own_status, against = ("open", "") if published is None else KINDS[claim["kind"]](published, claim)
        checked.append(Verdict(claim["text"], status, evidence, against if own_status == "does not hold" else ""))
    return checked


def comparisons(grid: Grid, records: Mapping[str, CellRecord]) -> list[Comparison]:
    """Every comparison that the paper does not report."""
    results = []
    for item in grid.content["unreported"]:
        gains, labels = {}, tuple(grid.label("settings", setting) for setting in item["settings"])
        for setting, label in zip(item["settings"], labels, strict=True):
            left, right = (_score(grid, setting, item[side], records) for side in ("left", "right"))
            if left is not None and right is not None:
                gains[label] = (left, right)
        results.append(Comparison(item["text"], labels, gains))
    return results


def _score(grid: Grid, setting: str, side: Mapping[str, str], records: Mapping[str, CellRecord]) -> Score | None:
    record = records.get(f"{setting}_{side['method']}_seed{grid.seed}")
    return None if record is None else record.score(side["measure"], side.get("rule"))


def _leads(table: PaperTable, claim: Mapping[str, Any]) -> tuple[Status, str]:
    """One row is above every rival in every column."""
    own = next(row for row in table.rows if row.label == claim["row"])
    rivals = [r for r in table.rows if r is not own and (r.published or claim.get("among") != "published")]
    columns = [j for j, name in enumerate(table.columns) if name in claim.get("columns", table.columns)]
    led, behind, incomplete, beaten = 0, [], 0, []
    for j in columns:
        ours = own.entries[j].ours
        others = [(r.entries[j].ours, r.label) for r in rivals if r.entries[j].gap != "none"]
        known = [(score.mean, label) for score, label in others if score is not None]
        ahead = [(mean, label) for mean, label in known if ours is not None and mean >= ours.mean]
        if ours is not None and ahead:
            mean, label = max(ahead)
            behind.append(f"{label} is {100 * (mean - ours.mean):.2f} ahead in {table.column_name(j)}")
        elif ours is None or len(known) < len(others):
            incomplete += 1
            beaten += [len(known)] if ours is not None and known else []
        else:
            led += 1
    planned = all(r.entries[j].gap != "none" for r in rivals for j in columns)
    text = f"ahead of all {len(rivals) if planned else 'planned'} rivals in {led} of {len(columns)} columns"
    text += f"; {'; '.join(behind)}" if behind else ""
    text += f"; in {len(beaten)} ahead of those run so far ({_span(beaten)} of them)" if beaten else ""
    text += f"; {unknown} cannot be decided yet" if (unknown := incomplete - len(beaten)) else ""
    return _status(bool(behind), incomplete == 0), text


def _above(table: PaperTable, claim: Mapping[str, Any]) -> tuple[Status, str]:
    """One column is above another in every row that the paper has."""
    left, right = table.columns.index(claim["left"]), table.columns.index(claim["right"])
    rows = [row for row in table.rows if row.published]
    pairs = {row.label: (row.entries[left].ours, row.entries[right].ours) for row in rows}
    known = {label: (a.mean, b.mean) for label, (a, b) in pairs.items() if a is not None and b is not None}
    wrong = [label for label, (a, b) in known.items() if a <= b]
    text = f"for {len(known) - len(wrong)} of {len(known)} methods"
    text += f"; not for {', '.join(wrong)}" if wrong else ""
    text += f"; {len(rows) - len(known)} missing" if len(known) < len(rows) else ""
    return _status(bool(wrong), len(known) == len(rows)), text


def _declines(table: PaperTable, claim: Mapping[str, Any]) -> tuple[Status, str]:  # noqa: ARG001
    """Every row that the paper has falls from column to column within each group."""
    wrong, known, total = [], 0, 0
    for row in (row for row in table.rows if row.published):
        for group in dict.fromkeys(table.groups):
            scores = [e.ours for e, g in zip(row.entries, table.groups, strict=True) if g == group]
            means = [score.mean for score in scores if score is not None]
            total, known = total + len(scores), known + len(means)
            if any(b >= a for a, b in pairwise(means)):
                figures = ", ".join(f"{100 * mean:.2f}" for mean in means)
                wrong.append(f"{row.label}, {group[:1].lower()}{group[1:]}: {figures}")
    text = f"{total - known} of {total} figures missing" if known < total else "everywhere"
    return _status(bool(wrong), known == total), f"not for {'; '.join(wrong)}" if wrong else text


def _order(rising: bool) -> Callable[[PaperTable, Mapping[str, Any]], tuple[Status, str]]:
    def check(table: PaperTable, claim: Mapping[str, Any]) -> tuple[Status, str]:
        """A column rises, or falls, from each row to the next."""
        values, text = _column_scores(table, claim["column"])
        known = [value for value in values if value is not None]
        wrong = any((b <= a) if rising else (b >= a) for a, b in pairwise(known))
        return _status(wrong, len(known) == len(values)), text

    return check


def _peaks(table: PaperTable, claim: Mapping[str, Any]) -> tuple[Status, str]:
    """A column is highest in one row."""
    values, text = _column_scores(table, claim["column"])
    labels = [row.label for row in table.rows]
    at = values[labels.index(claim["row"])]
    higher = at is not None and any(v is not None and v > at for v in values)
    return _status(higher, all(v is not None for v in values)), text


KINDS: dict[str, Callable[[PaperTable, Mapping[str, Any]], tuple[Status, str]]] = {
    "leads": _leads,
    "above": _above,
    "declines": _declines,
    "rises": _order(rising=True),
    "falls": _order(rising=False),
    "peaks": _peaks,
}


def _column_scores(table: PaperTable, column: str) -> tuple[list[float | None], str]:
    """The means of a column, and their listing."""
    j = table.columns.index(column)
    scores = [(row.label, row.entries[j].ours) for row in table.rows]
    listed = [f"{label}: {score.percent}" for label, score in scores if score is not None]
    missing = len(scores) - len(listed)
    listed += [f"{missing} of {len(scores)} missing"] if missing else []
    return [None if score is None else score.mean for _, score in scores], ", ".join(listed)


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _status(refuted: bool, complete: bool) -> Status:
    return "does not hold" if refuted else "holds" if complete else "open"
