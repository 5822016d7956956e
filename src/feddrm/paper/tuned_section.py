"""The part of the results page on the tuned grid: rates chosen, claims, tables, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddrm.paper.cell_records import read_records
from feddrm.paper.cell_search import with_choices
from feddrm.paper.claims import comparisons, verdicts
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import signed, tables
from feddrm.paper.results_page import MARKDOWN, SeedSpread, comparison_table, environments, seed_spreads
from feddrm.report.tables import DASH, Table

MEASURES = {
    "average": "average",
    "system": "system, published rule",
    "system.exact_density": "system, exact router",
    "system.stacked": "system, stack",
}


def tuned_section(results: Path) -> str:
    """The section as Markdown; empty if no cell of the tuned grid has been run."""
    grid = with_choices(Grid.read("tuned"), results)
    records = read_records(grid, results)
    if not records:
        return ""
    search: Mapping[str, Any] = grid.search or {}
    return MARKDOWN.get_template("tuned.md.j2").render(
        grid=grid,
        rates=search["axes"]["lr"],
        held_out=round(100 * search["held_out"]),
        share=round(100 * search["cost"]),
        clip=f"{grid.content['train']['clip']:g}",
        done=sum(cell.id in records for cell in grid.cells),
        verdicts=verdicts(grid, records),
        chosen=_chosen(grid),
        unreported=comparison_table(comparisons(grid, records)),
        seeds=_by_seed(seed_spreads(grid, records, tuple(MEASURES))),
        parts=[part.begun for part in tables(grid, "main", records)],
        environments=environments(records),
    )


def _chosen(grid: Grid) -> str:
    """The rates by method and setting."""
    settings = grid.content["settings"]
    rows = [
        [grid.label("methods", method), *(_rate(grid, f"{setting}_{method}") for setting in settings)]
        for method in grid.content["methods"]
        if any(f"{setting}_{method}" in grid.chosen for setting in settings)
    ]
    header = ["Learning rate chosen", *(grid.label("settings", setting) for setting in settings)]
    return Table.of(header, rows).to_markdown()


def _rate(grid: Grid, pair: str) -> str:
    return str(grid.chosen[pair]["lr"]) if pair in grid.chosen else DASH


def _by_seed(spreads: list[SeedSpread]) -> str:
    """Differences between two methods on the same seed, in points; empty if there are none."""
    rows = [
        [s.setting, s.method, MEASURES[s.measure], ", ".join(signed(100 * v) for v in s.values), signed(100 * s.mean)]
        for s in spreads
        if s.paired
    ]
    return Table.of(["setting", "difference", "measure", "by seed, points", "mean"], rows).to_markdown() if rows else ""
