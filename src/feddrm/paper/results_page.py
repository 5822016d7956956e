"""``docs/results.md``: what holds, what does not, what the paper did not report; then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from feddrm.errors import FeddrmError
from feddrm.io.text import read_yaml
from feddrm.paper.cell_records import CellRecord, cell_of
from feddrm.paper.claims import Comparison, Verdict, comparisons, verdicts
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import BEYOND, CAPTION, Entry, seed_rows, signed, tables
from feddrm.report.tables import DASH, Table

NOTABLE = 1.5  # points between ours and the paper's beyond which somebody must say why
NOTES = "notes.yaml"
OPEN = "Open:"  # begins a note that says what has been tried, and no reason yet


def results_page(grid: Grid, records: Mapping[str, CellRecord], notes: Mapping[str, str]) -> str:
    """The whole page as Markdown; the same results give the same text."""
    sections = [_opening(grid, records), _differences(grid, records, notes), _seeds(grid, records)]
    sections += [_table_section(grid, records, notes, name) for name in grid.content["tables"]]
    sections += [_beyond(grid, records), _measured(records)]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def read_notes(grid: Grid, records: Mapping[str, CellRecord], folder: Path) -> dict[str, str]:
    """``cell measure`` to note, from ``notes.yaml``; a note on a cell that does not exist is refused."""
    path = folder / NOTES
    if not path.exists():
        return {}
    content = read_yaml(path, "correct it")
    known = {*grid.by_id, *(r.id for r in records.values() if cell_of(grid, r) is not None)}
    notes: dict[str, str] = {}
    for cell, said in content.items():
        if cell not in known:
            raise FeddrmError(f"{path} has a note on '{cell}', which is no cell (see: feddrm paper list): correct it")
        if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
            raise FeddrmError(f"{path}, '{cell}': write a note per measure, as in 'system: why'")
        notes |= {f"{cell} {measure}": " ".join(text.split()) for measure, text in said.items()}
    return notes


def _opening(grid: Grid, records: Mapping[str, CellRecord]) -> str:
    done = sum(cell.id in records for cell in grid.cells)
    routed = sum(record.routed for record in records.values())
    found = verdicts(grid, records)
    near, far, known = _agreement(grid, records)
    published = len(_published(grid, records))
    lines = [
        "# Results",
        "",
        "<!-- Written by 'feddrm paper page' from the finished cells: change those, not this. -->",
        "",
        f"**{done} of {len(grid.cells)} cells** of {_whose(grid)} have been run by its full protocol, {routed} of "
        f"them with the exact router. Of the paper's {published} figures {known} can be compared: {near} lie within "
        f"{NOTABLE} points of ours, {far} farther off. The other {len(grid.cells) - done} cells are missing, and "
        "nothing stands in for them.",
        "",
        _spread(grid, records),
        "",
    ]
    lines += ["## Holds", "", *_bullets([v for v in found if v.status == "holds"]), ""]
    lines += ["## Does not hold", "", *_doubt(grid, records)]
    lines += [*_bullets([v for v in found if v.status == "does not hold"]), ""]
    against = [f"- {v.text}: {v.contradicted}." for v in found if v.contradicted]
    lines += ["Contradicted by the paper's own tables, whatever ours say:", "", *(against or ["- nothing"]), ""]
    lines += ["## Not reported in the paper", "", *_unreported(comparisons(grid, records))]
    lines += ["", "## Open", "", *_bullets([v for v in found if v.status == "open"], "nothing")]
    return "\n".join(lines)


def _whose(grid: Grid) -> str:
    return "the paper's grid" if grid.name == "paper" else f"the grid '{grid.name}', which is not the paper's,"


def _doubt(grid: Grid, records: Mapping[str, CellRecord]) -> list[str]:
    """How large a margin must be to mean anything."""
    varied = [row["across_seeds"] for row in seed_rows(grid, records, ("average", "system")) if row["paired"]]
    if not varied:
        return ["With one seed: another may say otherwise.", ""]
    return [
        f"With one seed. The difference between two methods has varied by up to {100 * max(varied):.2f} points from "
        "seed to seed: a smaller margin refutes a claim for this seed, not in general.",
        "",
    ]


def _unreported(found: Sequence[Comparison]) -> list[str]:
    settings = list(dict.fromkeys(setting for item in found for setting in item.settings))
    rows = [[item.text, item.ahead, *map(item.figures, settings)] for item in found]
    return [Table.of(["A against B (percent, bold where A is ahead)", "ahead", *settings], rows).to_markdown()]


def _spread(grid: Grid, records: Mapping[str, CellRecord]) -> str:
    """How far one seed's figures may be trusted, in a sentence."""
    rows = seed_rows(grid, records, ("average", "system"))
    single = [row for row in rows if not row["paired"]]
    if not single:
        return "Every figure is of one seed: its ± is the spread across the last rounds of one run."

    def between(values: Iterable[float]) -> str:
        found = [100 * value for value in values]
        return f"{min(found):.2f} to {max(found):.2f}"

    said = (
        f"A figure's ± is the spread across the last rounds of one run: {between(r['across_rounds'] for r in single)} "
        f"points where further seeds have been run, against {between(r['across_seeds'] for r in single)} across seeds "
        f"({len(single)} figures of two or more seeds)"
    )
    paired = [row for row in rows if row["paired"]]
    if paired:
        said += (
            f"; differences between two methods on the same seed vary by {between(r['across_seeds'] for r in paired)}"
        )
    return f"{said}. See [Seeds](#seeds)."


def _bullets(found: Sequence[Verdict], nothing: str = "nothing yet") -> list[str]:
    return [f"- {verdict.text}: {verdict.evidence}." for verdict in found] or [f"- {nothing}"]


def _published(grid: Grid, records: Mapping[str, CellRecord]) -> list[tuple[str, Entry]]:
    """Every figure of the paper once, with the first place it stands in: tables repeat some."""
    found: dict[tuple[str, str, float], tuple[str, Entry]] = {}
    for name in grid.content["tables"]:
        for table in tables(grid, name, records):
            for row, column, entry in table.entries():
                if entry.paper is not None:
                    where = f"{table.title}: {row.label}, {column}"
                    found.setdefault((entry.cell, entry.measure, entry.paper.mean), (where, entry))
    return list(found.values())


def _agreement(grid: Grid, records: Mapping[str, CellRecord]) -> tuple[int, int, int]:
    gaps = [d for _, entry in _published(grid, records) if (d := entry.difference) is not None]
    far = sum(abs(gap) > NOTABLE for gap in gaps)
    return len(gaps) - far, far, len(gaps)


def _differences(grid: Grid, records: Mapping[str, CellRecord], notes: Mapping[str, str]) -> str:
    lines = [
        f"## Differences from the paper of more than {NOTABLE} points",
        "",
        "One seed (2025) on either side; spreads across seeds are below.",
        "",
    ]
    explained: list[str] = []
    unexplained: list[str] = []
    for where, entry in _published(grid, records):
        gap = entry.difference
        if gap is None or abs(gap) <= NOTABLE:
            continue
        note = notes.get(f"{entry.cell} {entry.measure}", "")
        known = note and not note.startswith(OPEN)
        (explained if known else unexplained).append(f"- {where}: {signed(gap)}. {note}".strip())
    lines += ["Explained:", "", *(explained or ["- none"]), "", "Unexplained:", "", *(unexplained or ["- none"])]
    return "\n".join(lines)


def _seeds(grid: Grid, records: Mapping[str, CellRecord]) -> str:
    rows = seed_rows(grid, records, ("average", "system", "system.exact_density", "system.stacked"))
    lines = [
        "## Seeds",
        "",
        "The paper's ± is the spread across the last rounds of one run. Across seeds (another division of the "
        "data, another start) it is another matter. *A less B* is the difference between two methods, "
        "seed by seed: on the same division of the data.",
        "",
    ]
    if not rows:
        return "\n".join([*lines, "No setting has been run with more than one seed yet."])
    header = ["setting", "method", "measure", "seeds", "mean", "± across seeds", "± across rounds"]
    cells = [
        [
            *(row[key] for key in ("setting", "method", "measure", "seeds")),
            *(_points(row[key]) for key in ("mean", "across_seeds", "across_rounds")),
        ]
        for row in rows
    ]
    return "\n".join([*lines, Table.of(header, cells).to_markdown()])


def _points(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.2f}".replace("-", "−")


def _table_section(grid: Grid, records: Mapping[str, CellRecord], notes: Mapping[str, str], name: str) -> str:
    parts = tables(grid, name, records)
    shown = {f"{e.cell} {e.measure}" for table in parts for _, _, e in table.entries()}
    said = [f"- \\* `{key.replace(' ', '`, ')}: {note}" for key, note in notes.items() if key in shown]
    lines = [f"## Table: {name}", "", "\n\n".join(part.to_markdown(notes) for part in parts), "", *said]
    if name == next(iter(grid.content["tables"])):
        lines += ["", CAPTION]
    return "\n".join(lines)


def _beyond(grid: Grid, records: Mapping[str, CellRecord]) -> str:
    parts = tables(grid, BEYOND, records)
    begun = [table for table in parts if table.count[0]]
    lines = [
        "## Everything measured, setting by setting",
        "",
        f"{len(begun)} of {len(parts)} settings have been begun; `feddrm paper table beyond` prints all of them. "
        "*Before tuning* is the window before a method's clients tune alone: one global model for everybody.",
    ]
    for table in begun:
        lines += ["", table.to_markdown({})]
    return "\n".join(lines)


def _measured(records: Mapping[str, CellRecord]) -> str:
    """On what, with what, when and how long."""
    lines = ["## How it was measured", "", "`feddrm paper run` on each machine; one JSON per finished cell."]
    groups: dict[str, list[CellRecord]] = {}
    for record in records.values():
        versions = ", ".join(f"{name} {version}" for name, version in record.content["versions"].items())
        groups.setdefault(f"{record.hardware}; {versions}", []).append(record)
    for where, several in sorted(groups.items()):
        dates = sorted({str(record.content["date"]) for record in several})
        hours = sum(record.seconds for record in several) / 3600
        lines += ["", f"- {where}: {len(several)} cells, {hours:.2f} h, {dates[0]} to {dates[-1]}"]
    return "\n".join(lines)
