"""The results page ``docs/results.md``: which claims hold, which do not, what is not reported, and all tables.

The text of the page is in ``results.md.j2``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from jinja2 import FileSystemLoader

from feddrm.errors import FeddrmError
from feddrm.io.text import read_yaml
from feddrm.paper.cell_records import CellRecord, cell_of
from feddrm.paper.claims import Comparison, comparisons, verdicts
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import BEYOND, CAPTION, Entry, PaperTable, signed, tables
from feddrm.report.html_templates import TEMPLATES
from feddrm.report.tables import DASH, Table

NOTABLE = 1.5  # points; a larger difference from the paper needs an explanation
NOTES = "notes.yaml"
OPEN = "Open:"  # begins a note that says what has been tried but gives no reason yet
SPREAD_OF = ("average", "system")  # the measures whose spread across seeds the page opens with

MARKDOWN = TEMPLATES.overlay(loader=FileSystemLoader(Path(__file__).parent), autoescape=False)


@dataclass(frozen=True)
class SeedSpread:
    """A measure of one method, or of the difference between two (``paired``), by seed."""

    setting: str
    method: str
    measure: str
    values: tuple[float, ...]  # one per seed
    across_rounds: float | None = None  # the mean spread across the last rounds of a run
    paired: bool = False

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def across_seeds(self) -> float:
        return stdev(self.values)


def results_page(grid: Grid, records: Mapping[str, CellRecord], notes: Mapping[str, str], tuned: str = "") -> str:
    """The whole page as Markdown, with the section on the tuned grid; the same results give the same text."""
    shown = {name: tables(grid, name, records) for name in grid.content["tables"]}
    beyond = tables(grid, BEYOND, records)
    published = _published(chain.from_iterable(shown.values()))
    compared = [(place, entry, d) for place, entry in published if (d := entry.difference) is not None]
    far = [(place, entry, d) for place, entry, d in compared if abs(d) > NOTABLE]
    seeds = seed_spreads(grid, records, (*SPREAD_OF, "system.exact_density", "system.stacked"))
    return MARKDOWN.get_template("results.md.j2").render(
        grid=grid,
        done=sum(cell.id in records for cell in grid.cells),
        routed=sum(record.routed for record in records.values()),
        notable=NOTABLE,
        published=len(published),
        compared=len(compared),
        far=[_difference(place, entry, d, notes) for place, entry, d in far],
        verdicts=verdicts(grid, records),
        unreported=comparison_table(comparisons(grid, records)),
        single=[spread for spread in seeds if spread.measure in SPREAD_OF and not spread.paired],
        paired=[spread for spread in seeds if spread.measure in SPREAD_OF and spread.paired],
        range_of=_range_of,
        seeds=_seeds(seeds),
        tables={name: (parts, _footnotes(parts, notes)) for name, parts in shown.items()},
        figures=grid.content.get("figures", {}),
        notes=notes,
        caption=CAPTION,
        settings=len(beyond),
        begun=[table.begun for table in beyond if table.begun.rows],
        environments=environments(records),
        tuned=tuned,
    )


def read_notes(grid: Grid, records: Mapping[str, CellRecord], folder: Path) -> dict[str, str]:
    """The notes in ``notes.yaml`` by ``cell measure``. A note on an unknown cell is refused."""
    path = folder / NOTES
    if not path.exists():
        return {}
    known = {*grid.by_id, *(r.id for r in records.values() if cell_of(grid, r) is not None)}
    notes: dict[str, str] = {}
    for cell, by_measure in read_yaml(path, "correct it").items():
        if cell not in known:
            raise FeddrmError(f"{path} has a note on '{cell}', which is no cell (see: feddrm paper list): correct it")
        if not isinstance(by_measure, dict) or not all(isinstance(text, str) for text in by_measure.values()):
            raise FeddrmError(f"{path}, '{cell}': write a note per measure, as in 'system: why'")
        notes |= {f"{cell} {measure}": " ".join(text.split()) for measure, text in by_measure.items()}
    return notes


def _published(shown: Iterable[PaperTable]) -> list[tuple[str, Entry]]:
    """Every figure of the paper once, with its first place: some stand in two tables."""
    entries: dict[tuple[str, str, float], tuple[str, Entry]] = {}
    for table in shown:
        for row, column, entry in table.entries():
            if entry.paper is not None:
                place = f"{table.title}: {row.label}, {column}"
                entries.setdefault((entry.cell, entry.measure, entry.paper.mean), (place, entry))
    return list(entries.values())


def _difference(place: str, entry: Entry, points: float, notes: Mapping[str, str]) -> dict[str, Any]:
    """A line on a difference from the paper, and whether its note explains it."""
    note = notes.get(f"{entry.cell} {entry.measure}", "")
    return {
        "line": f"{place}: {signed(points)}. {note}".strip(),
        "explained": bool(note) and not note.startswith(OPEN),
    }


def comparison_table(compared: Sequence[Comparison]) -> str:
    """Comparisons that the paper does not report, setting by setting."""
    settings = list(dict.fromkeys(setting for item in compared for setting in item.settings))
    rows = [[item.text, item.ahead, *map(item.figures, settings)] for item in compared]
    return Table.of(["A against B (percent, bold where A is ahead)", "ahead", *settings], rows).to_markdown()


def seed_spreads(grid: Grid, records: Mapping[str, CellRecord], measures: Sequence[str]) -> list[SeedSpread]:
    """Settings and methods with more than one seed.

    The first method of a setting is also compared with every other one, seed by seed: both then have the
    same division of the data, so it does not matter how easy that division is.
    """
    by_setting: dict[str, dict[str, dict[int, CellRecord]]] = {}
    for cell in [*grid.cells, *(cell for r in records.values() if (cell := cell_of(grid, r)) is not None)]:
        if (record := records.get(cell.id)) is not None:
            by_setting.setdefault(cell.setting, {}).setdefault(cell.method, {})[cell.seed] = record
    spreads = []
    for setting, methods in by_setting.items():
        label, first = grid.label("settings", setting), next(iter(methods))
        for measure in measures:
            scores = {
                method: {seed: score for seed, r in by_seed.items() if (score := r.score(measure)) is not None}
                for method, by_seed in methods.items()
            }
            for method, own in scores.items():
                name = grid.label("methods", method)
                rounds = [score.std for score in own.values() if score.std is not None]
                means = tuple(score.mean for score in own.values())
                spreads.append(SeedSpread(label, name, measure, means, fmean(rounds) if rounds else None))
                if method != first:
                    less = tuple(score.mean - own[seed].mean for seed, score in scores[first].items() if seed in own)
                    spreads.append(
                        SeedSpread(label, f"{grid.label('methods', first)} less {name}", measure, less, paired=True)
                    )
    return [spread for spread in spreads if len(spread.values) > 1]


def _range_of(spreads: Sequence[SeedSpread], name: str) -> str:
    values = [100 * getattr(spread, name) for spread in spreads]
    return f"{min(values):.2f} to {max(values):.2f} points"


def _seeds(spreads: Sequence[SeedSpread]) -> str:
    header = ["setting", "method", "measure", "seeds", "mean", "± across seeds", "± across rounds"]
    rows = [
        [s.setting, s.method, s.measure, len(s.values), *map(_points, (s.mean, s.across_seeds, s.across_rounds))]
        for s in spreads
    ]
    return Table.of(header, rows).to_markdown() if rows else ""


def _points(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.2f}".replace("-", "−")


def _footnotes(parts: Sequence[PaperTable], notes: Mapping[str, str]) -> list[str]:
    shown = {f"{entry.cell} {entry.measure}" for table in parts for _, _, entry in table.entries()}
    return [f"\\* `{key.replace(' ', '`, ')}: {note}" for key, note in notes.items() if key in shown]


def environments(records: Mapping[str, CellRecord]) -> list[str]:
    """Hardware, versions, hours and dates."""
    groups: dict[str, list[CellRecord]] = {}
    for record in records.values():
        versions = ", ".join(f"{name} {version}" for name, version in record.content["versions"].items())
        groups.setdefault(f"{record.hardware}; {versions}", []).append(record)
    lines = []
    for environment, group in sorted(groups.items()):
        dates = sorted({str(record.content["date"]) for record in group})
        hours = sum(record.seconds for record in group) / 3600
        lines.append(f"{environment}: {len(group)} cells, {hours:.2f} h, {dates[0]} to {dates[-1]}")
    return lines
