"""A report's HTML page and its files. This module makes the content; ``templates/report.html.j2`` has the markup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from feddrm._version import __version__
from feddrm.errors import SettingError
from feddrm.io.atomic import write_together
from feddrm.io.page_files import TERMS
from feddrm.io.run_files import REPORT
from feddrm.report import run_figures
from feddrm.report.accuracy_measures import ANSWERS, KINDS, TERM_OF_KIND
from feddrm.report.html_templates import TEMPLATES
from feddrm.report.page_parts.conclusion import conclusion, main_table, one_class_note
from feddrm.report.page_parts.run_sections import flat, run_view
from feddrm.report.run_group import RunGroup
from feddrm.report.run_table import DIFFERENCES, RunTable
from feddrm.report.svg import Picture, inline_svg
from feddrm.report.tables import DASH, Table

CSV, LATEX = "table.csv", "table.tex"
FILES = (REPORT, CSV, LATEX)


def write_report(table: RunTable, out: Path) -> Path:
    """Write ``report.html``, ``table.csv`` and ``table.tex`` into a folder, all or none; returns the page's path."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"--out '{out}' is a file: name a folder")
    if out.suffix.lower() in {Path(name).suffix for name in FILES} and not out.exists():
        raise SettingError(f"--out '{out}': name a folder, as '{out.with_suffix('')}', for {', '.join(FILES)}")
    contents = {REPORT: report_page(table), CSV: table.csv(), LATEX: table.latex()}
    write_together({out / name: text.encode(errors="backslashreplace") for name, text in contents.items()})
    return out / REPORT


def report_page(table: RunTable) -> str:
    """The whole document for one run or several."""
    groups = table.groups
    several = len(groups) > 1
    kinds = {measure.kind for measure in table.columns}
    answers = {name for group in groups for name, _ in group.metrics}
    noun = "groups of runs" if table.seeded else "runs"
    header, differences = table.difference_rows()
    views = [run_view(group, f"r{i}") for i, group in enumerate(groups, 1)]
    return TEMPLATES.get_template("report.html.j2").render(
        title=f"{len(groups)} {noun} compared" if several else groups[0].name,
        runs=views,
        searchable=any(section.searchable for view in views for section in view.sections),
        conclusion=conclusion(table),
        one_class=one_class_note(table),
        main=main_table(table, links=several),
        datasets=", ".join(dict.fromkeys(record.data for record in table.records)),
        results=table.table(links=several),
        paired=Table.of([h.capitalize() for h in header], differences, DIFFERENCES) if differences else None,
        metrics=table.metric_table(),
        comparison=_comparison(groups) if several else (),
        meanings=[
            *([("C-index", TERMS["C-index"])] if groups[0].first.quantity == "c_index" else []),
            *((kind.capitalize(), TERMS[TERM_OF_KIND[kind]]) for kind in KINDS if kind in kinds),
        ],
        answers=[(f"{name.capitalize()} answers", ANSWERS[name]) for name in ANSWERS if name in answers],
        differences=_differences(groups) if several else None,
        version=__version__,
    )


def _comparison(groups: Sequence[RunGroup]) -> list[Picture]:
    """Figures that show all groups side by side."""
    pictures, noun = [], groups[0].first.noun
    bars = " Bars and bands: standard deviation over seeds." if any(len(g.records) > 1 for g in groups) else ""
    measures = run_figures.comparison_measures(groups)
    if measures:
        description = "; ".join(
            f"{g.name}: {', '.join(f'{m.title} {g.scores[m].mean:.1%}' for m in measures if m in g.scores)}"
            for g in groups
        )
        svg = inline_svg(
            lambda: run_figures.comparison_figure(groups), "compare", f"The {noun} of all runs", description
        )
        caption = f"The main figures of every run on one scale; the table has all of them.{bars}"
        pictures.append(Picture(svg, caption))
    if any(group.first.points for group in groups):
        svg = inline_svg(
            lambda: run_figures.comparison_curves(groups),
            "curves",
            f"Average and system {noun} of all runs over rounds",
            "One line per run; the last values are in the table above.",
        )
        caption = (
            f"Over rounds. One rule, chosen in advance, stands for each run's system {noun}: "
            "the router's density rule if there is a router, otherwise the answer of all clients together."
        )
        pictures.append(Picture(svg, caption))
    if len(counted := run_figures.communication_groups(groups)) > 1:
        title = f"Average {noun} over megabytes sent"
        description = "One line per run; the totals are in the table above."
        svg = inline_svg(lambda: run_figures.communication_figure(counted), "sent", title, description)
        pictures.append(Picture(svg, f"{title}: the tensors of all rounds until then, from the server and to it."))
    return pictures


def _differences(groups: Sequence[RunGroup]) -> Table | None:
    """The settings in which the groups differ, and no others."""
    settings = [dict(flat(group.first.config)) for group in groups]
    keys = dict.fromkeys(key for given in settings for key in given)
    rows = [[key, *(given.get(key, DASH) for given in settings)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    caption = "Settings in which these runs differ; all others are the same."
    return Table.of(["Setting", *(group.name for group in groups)], rows, caption) if rows else None
