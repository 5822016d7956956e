"""A report's HTML page and its files. This module makes the content; ``templates/report.html.j2`` has the markup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from feddrm._version import __version__
from feddrm.errors import SettingError
from feddrm.io.atomic import write_together
from feddrm.io.page_files import TERMS
from feddrm.io.run_files import FIGURES, REPORT
from feddrm.report import run_figures
from feddrm.report.accuracy_measures import ANSWERS, KINDS, TERM_OF_KIND
from feddrm.report.figure_files import FORMATS, figure_bytes
from feddrm.report.html_templates import TEMPLATES
from feddrm.report.page_parts.conclusion import conclusion, main_table, one_class_note
from feddrm.report.page_parts.run_sections import RunView, flat, run_view
from feddrm.report.run_group import RunGroup
from feddrm.report.run_table import RunTable
from feddrm.report.svg import LOOK, Picture, inline_svg
from feddrm.report.tables import DASH, Table

CSV, LATEX = "table.csv", "table.tex"
FILES = (REPORT, CSV, LATEX)


def write_report(table: RunTable, out: Path, figures: bool = False) -> Path:
    """Write ``report.html``, ``table.csv`` and ``table.tex`` into a folder, all or none; returns the page's path.

    With ``figures``, every figure of the page is also a file of each format in the folder ``figures``.
    """
    if out.exists() and not out.is_dir():
        raise SettingError(f"--out '{out}' is a file: name a folder")
    if out.suffix.lower() in {Path(name).suffix for name in FILES} and not out.exists():
        raise SettingError(f"--out '{out}': name a folder, as '{out.with_suffix('')}', for {', '.join(FILES)}")
    contents = {REPORT: report_page(table), CSV: table.csv(), LATEX: table.latex()}
    files = {out / name: text.encode(errors="backslashreplace") for name, text in contents.items()}
    if figures:
        files |= figure_contents(table, out / FIGURES)
    write_together(files)
    return out / REPORT


def figure_contents(table: RunTable, folder: Path) -> dict[Path, bytes]:
    """Every figure of the page as files, for a paper: in the page's colours, on white."""
    pictures = _comparison(table.groups) if len(table.groups) > 1 else []
    pictures += [picture for view in _views(table) for section in view.sections for picture in section.figures]
    files: dict[Path, bytes] = {}
    with matplotlib.rc_context({**LOOK, "figure.facecolor": "white", "axes.facecolor": "white"}):
        for svg, _ in pictures:
            paths = [folder / f"{svg.key}{suffix}" for suffix in FORMATS]
            files |= {path: figure_bytes(svg.draw(), path) for path in paths}
    return files


def report_page(table: RunTable) -> str:
    """The whole document for one run or several."""
    groups = table.groups
    several = len(groups) > 1
    kinds = {measure.kind for measure in table.columns}
    answers = {name for group in groups for name, _ in group.metrics}
    noun = "groups of runs" if table.seeded else "runs"
    views = _views(table)
    return TEMPLATES.get_template("report.html.j2").render(
        title=f"{len(groups)} {noun} compared" if several else groups[0].name,
        runs=views,
        searchable=any(section.searchable for view in views for section in view.sections),
        conclusion=conclusion(table),
        one_class=one_class_note(table),
        main=main_table(table, links=several),
        datasets=", ".join(dict.fromkeys(record.data for record in table.records)),
        results=table.table(links=several),
        paired=table.difference_table(),
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


def _views(table: RunTable) -> list[RunView]:
    return [run_view(group, f"r{i}") for i, group in enumerate(table.groups, 1)]


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
