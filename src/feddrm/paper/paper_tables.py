"""The paper's tables: our figures, the paper's and the difference. A cell that has not been run is a gap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from feddrm.errors import SettingError
from feddrm.io.text import read_json
from feddrm.paper.cell_records import BEFORE, CellRecord
from feddrm.paper.grid import Grid
from feddrm.registry import check_choice
from feddrm.report.accuracy_measures import BESIDE, BY_RULE, RULES, Score, rule_label
from feddrm.report.tables import DASH, ColumnGroup, Table, TableCell, TableColumn, TableRow, to_csv

PUBLISHED = Path(__file__).parent / "published.json"
BEYOND = "beyond"
WITHOUT_ROUTER = ("vote", "head_density", "head_posterior", "global")  # every other rule needs the exact router
CAPTION = (
    "Accuracy in percent: ours, mean ± standard deviation over the window; in brackets the paper's and our difference "
    "from it. Bold: the best of what has been run. 'missing': not run yet; '–': the method has no such thing."
)
GAPS = {"missing": "missing", "no router": "no router yet", "none": DASH}
CSV_HEADER = (
    *("table", "row", "column", "cell", "measure"),
    *("mean", "std", "paper_mean", "paper_std", "points", "gap", "note"),
)

Gap = Literal["", "missing", "no router", "none"]
Notes = Mapping[str, str]  # "cell measure" to text


@dataclass(frozen=True)
class Entry:
    """One place of a table. ``gap`` says why it has no score: not run yet, no router yet, or it cannot exist."""

    cell: str
    measure: str
    ours: Score | None
    paper: Score | None
    gap: Gap

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in percentage points."""
        if self.ours is None or self.paper is None:
            return None
        return 100 * (self.ours.mean - self.paper.mean)

    def formatted(self, best: bool, notes: Notes) -> TableCell:
        """``62.15 ± 0.22 (62.78, −0.63) *``; the star marks an entry with a note."""
        text, spread = (GAPS[self.gap], "") if self.ours is None else (self.ours.percent, self.ours.spread)
        details = [spread]
        if self.paper is not None:
            difference = "" if self.difference is None else f", {signed(self.difference)}"
            details.append(f"({self.paper.percent}{difference})")
            details += ["*"] if f"{self.cell} {self.measure}" in notes else []
        return TableCell(text, " ".join(filter(None, details)), bold=best)


@dataclass(frozen=True)
class PaperRow:
    """One method, or one value of what is varied. ``published`` says whether the paper has this row, too."""

    label: str
    entries: tuple[Entry, ...]
    line: bool = False  # a rule above it
    published: bool = True


@dataclass(frozen=True)
class PaperTable:
    """A titled table of entries. ``groups`` has the title above every column, empty if there is none."""

    title: str
    columns: tuple[str, ...]
    groups: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    def best(self, row: int, column: int) -> bool:
        """Whether an entry leads its column, to the digits shown. A single entry is never the best."""
        shown = [_digits(score) for r in self.rows if (score := r.entries[column].ours) is not None]
        ours = self.rows[row].entries[column].ours
        return ours is not None and len(shown) > 1 and _digits(ours) == max(shown)

    def column_name(self, column: int) -> str:
        """The full name of a column: its group, then its own name."""
        group, name = self.groups[column], self.columns[column]
        return f"{group}, {name}" if group else name

    def entries(self) -> list[tuple[PaperRow, str, Entry]]:
        """Every entry with its row and the full name of its column."""
        return [(row, self.column_name(j), entry) for row in self.rows for j, entry in enumerate(row.entries)]

    def as_published(self) -> PaperTable | None:
        """The same table with the paper's own figures in place of ours; None if the paper has none."""
        rows = tuple(
            replace(row, entries=tuple(replace(entry, ours=entry.paper) for entry in row.entries))
            for row in self.rows
            if row.published
        )
        return replace(self, rows=rows) if any(e.ours is not None for row in rows for e in row.entries) else None

    @property
    def count(self) -> tuple[int, int]:
        """How many entries have a score, and how many could have one."""
        possible = [entry for _, _, entry in self.entries() if entry.gap != "none"]
        return sum(entry.ours is not None for entry in possible), len(possible)

    @property
    def begun(self) -> PaperTable:
        """The table with the rows that have at least one score."""
        return replace(self, rows=tuple(row for row in self.rows if any(entry.ours for entry in row.entries)))

    def formatted(self, notes: Notes, corner: str = "Method") -> Table:
        """The table for the renderer; ``corner`` is the header of the first column."""
        columns = zip(self.groups, [TableColumn(TableCell(name), "c") for name in self.columns], strict=True)
        groups = groupby(columns, key=lambda pair: pair[0])
        rows = (
            (TableCell(row.label), *(entry.formatted(self.best(i, j), notes) for j, entry in enumerate(row.entries)))
            for i, row in enumerate(self.rows)
        )
        return Table(
            stub=(TableColumn(TableCell(corner), "l"),),
            groups=tuple(ColumnGroup(title, tuple(column for _, column in pairs)) for title, pairs in groups),
            rows=tuple(TableRow(cells, row.line) for cells, row in zip(rows, self.rows, strict=True)),
            caption=f"{self.title}. {CAPTION}",
        )

    def to_markdown(self, notes: Notes) -> str:
        """The title with the count of entries, then a pipe table."""
        done, possible = self.count
        return f"**{self.title}** ({done} of {possible})\n\n{self.formatted(notes, corner='').to_markdown()}"


def render(parts: Sequence[PaperTable], form: str, notes: Notes | None = None) -> str:
    """All parts of a table in one of the :data:`FORMATS`. Entries with a note are marked."""
    if form not in FORMATS:
        raise SettingError(f"unknown format '{form}': choose one of {', '.join(FORMATS)}")
    return FORMATS[form](parts, notes or {})


def _markdown(parts: Sequence[PaperTable], notes: Notes) -> str:
    return "\n\n".join([*(part.to_markdown(notes) for part in parts), CAPTION]) + "\n"


def _latex(parts: Sequence[PaperTable], notes: Notes) -> str:
    blocks = [r"% needs \usepackage{booktabs}; " + CAPTION.replace("%", r"\%")]
    blocks += [f"% {part.title}\n{part.formatted(notes).to_latex()}" for part in parts]
    return "\n\n".join(blocks) + "\n"


def _html(parts: Sequence[PaperTable], notes: Notes) -> str:
    return "\n".join(part.formatted(notes).to_html() for part in parts) + "\n"


def _long_csv(parts: Sequence[PaperTable], notes: Notes) -> str:
    """One line per entry, with accuracies as fractions; a cell without a value is empty."""
    rows = []
    for part in parts:
        for row, column, e in part.entries():
            ours = [None, None] if e.ours is None else [e.ours.mean, e.ours.std]
            paper = [None, None] if e.paper is None else [round(e.paper.mean, 6), round(e.paper.std or 0, 6)]
            points = None if e.difference is None else round(e.difference, 4)
            note = notes.get(f"{e.cell} {e.measure}", "")
            rows.append([part.title, row.label, column, e.cell, e.measure, *ours, *paper, points, e.gap, note])
    return to_csv(CSV_HEADER, rows)


FORMATS: dict[str, Callable[[Sequence[PaperTable], Notes], str]] = {
    "md": _markdown,
    "latex": _latex,
    "csv": _long_csv,
    "html": _html,
}


def signed(points: float) -> str:
    """A difference with its sign."""
    return f"+{points:.2f}" if points >= 0 else f"−{-points:.2f}"


def table_names(grid: Grid) -> list[str]:
    """The names that :func:`tables` accepts."""
    return [*grid.content["tables"], BEYOND]


def tables(grid: Grid, name: str, records: Mapping[str, CellRecord]) -> list[PaperTable]:
    """The parts of a named table. ``beyond`` has one part per setting, with everything that was measured."""
    check_choice("table", name, table_names(grid))
    if name == BEYOND:
        return [_beyond(grid, setting, records) for setting in grid.content["settings"]]
    return [_table(grid, part, records) for part in grid.content["tables"][name]]


@lru_cache(maxsize=1)
def published() -> Mapping[str, Any]:
    """The paper's figures, in percent."""
    return read_json(PUBLISHED, "install feddrm again")


def _table(grid: Grid, part: Mapping[str, Any], records: Mapping[str, CellRecord]) -> PaperTable:
    columns = part["columns"]
    rows = []
    for row in part["rows"]:
        entries = tuple(_entry(grid, row, column, part.get("published"), records) for column in columns)
        if any(entry.gap != "none" for entry in entries):
            label = row.get("label") or grid.label("methods", row["method"])
            rows.append(PaperRow(label, entries, bool(row.get("line")), bool(row.get("published", True))))
    labels = tuple(column.get("label") or grid.label("settings", column["setting"]) for column in columns)
    return PaperTable(part["title"], labels, tuple(column.get("group", "") for column in columns), tuple(rows))


def _entry(
    grid: Grid, row: Mapping[str, Any], column: Mapping[str, Any], source: str | None, records: Mapping[str, CellRecord]
) -> Entry:
    setting, method = row.get("setting") or column["setting"], row["method"]
    measure, rule = column["measure"], row.get("rule")
    cell = f"{setting}_{method}_seed{grid.seed}"
    theirs = _published(grid, source, setting, measure, method) if source and row.get("published", True) else None
    if rule not in (None, BEFORE) and measure not in BY_RULE:  # a routing rule changes no other measure
        return Entry(cell, measure, None, None, "none")
    record = records.get(cell)
    ours = None if record is None else record.score(measure, rule)
    planned = record is not None or cell in grid.by_id
    return Entry(cell, measure, ours, theirs, _gap(measure, rule, record, ours) if planned else "none")


def _gap(measure: str, rule: str | None, record: CellRecord | None, ours: Score | None) -> Gap:
    own_rule = measure.partition(".")[2]
    by_router = bool(own_rule) and own_rule not in WITHOUT_ROUTER
    if ours is not None:
        return ""
    if by_router and rule == BEFORE:  # a router is fitted once, after the last round
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


def _beyond(grid: Grid, setting: str, records: Mapping[str, CellRecord]) -> PaperTable:
    """Every method of one setting by every measure, whether the paper reports it or not."""
    columns = [{"setting": setting, "measure": kind, "label": kind} for kind in ("average", "oracle", "global")]
    columns += [
        {"setting": setting, "measure": f"{kind}.{rule}", "label": rule_label(rule), "group": f"{kind.capitalize()}"}
        for kind in BY_RULE
        for rule in RULES
        if rule not in ("global", *BESIDE)  # no cell has been measured by these
        if kind == "system" or rule.startswith(("head_", "exact_"))
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


def _digits(score: Score) -> float:
    return round(100 * score.mean, 2)
