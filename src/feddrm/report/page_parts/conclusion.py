"""How a report begins: one sentence, its figures on one scale, and the four main measures of every run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from feddrm.io.page_files import TERMS
from feddrm.report.accuracy_measures import BY_RULE, TERM_OF_KIND, Measure, Score, headline, rule_label
from feddrm.report.run_group import RunGroup
from feddrm.report.run_table import Column, RunTable
from feddrm.report.tables import DASH, ColumnGroup, Table, TableCell, TableColumn, TableRow

# Who answers a query of unknown origin, by rule: its name, and how the sentence says it.
GUIDES = {"exact_density": "exact router", "head_density": "published head"}
UNGUIDED = {"vote": "by a vote of all clients", "averaged": "by the mean of all clients"}
MAIN_MEASURES = {"system": "Unknown origin", "global": "Global model", "oracle": "Own client", "client": "Right client"}
TELLING = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro F1", "auroc": "AUROC"}
MEANINGS = {
    "system": "answered by the router or the vote named with the run",
    "global": "by one model for all",
    "oracle": "where the sample came from",
    "client": "how often the router names the client that the sample came from",
}
NEARLY_ALL = 0.9  # of all samples are of one class: one answer to everything has a high accuracy, too


class Bar(NamedTuple):
    """One figure of the sentence."""

    words: str  # how the query is answered: "when guided"
    source: str  # the run, and what guides in it
    score: Score
    guided: bool = False

    @property
    def percent(self) -> str:
        return f"{100 * self.score.mean:.0f} %"


@dataclass(frozen=True)
class Conclusion:
    """The sentence in parts, and its bars."""

    subject: str
    predicate: str
    bars: tuple[Bar, ...]

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The figures, each with the words that follow it; the first says what is counted."""
        first, *others = self.bars
        return [(first.percent, f"{self.predicate} {first.words}"), *((bar.percent, bar.words) for bar in others)]

    @property
    def sentence(self) -> str:
        """The whole sentence as text."""
        return f"{self.subject}: {', '.join(' '.join(part) for part in self.parts)}."


def conclusion(table: RunTable) -> Conclusion | None:
    """What the runs show of a query of unknown origin; None without any figure of answers.

    The first run with an exact router stands for all, else the first with a published head, else the first. Nothing is
    chosen by its figures. A global model of another run counts if that run was tested on the same data.
    """
    group = next((g for rule in GUIDES for g in table.groups if Measure("system", rule) in g.scores), table.groups[0])
    survival = group.first.quantity == "c_index"
    others = _same_data(group, table.groups)
    bars = _bars(group, others)
    if not bars:
        return None
    subject = "Queries" if survival else "A query"
    subject += " of unknown origin" if len(bars) > 1 else ""
    subject += f" (run {group.name})" if len(others) < len(table.groups) - 1 else ""  # others are on other data
    subject += f", mean of {len(group.records)} seeds" if len(group.records) > 1 else ""
    subject += "" if group.finished else f", after round {group.first.round} of {group.first.rounds}"
    predicate = "of pairs in the right order of risk" if survival else "answered rightly"
    return Conclusion(subject, predicate, tuple(bars))


def one_class_note(table: RunTable) -> str | None:
    """What accuracies are worth where nearly all samples are of one class; None where they are not."""
    for group in table.groups:
        data = group.first.dataset
        if data is None or data.counts is None or group.first.quantity == "c_index":
            continue
        totals = data.counts.sum(0)
        if (share := totals.max() / totals.sum()) < NEARLY_ALL:
            continue
        name = data.classes[int(totals.argmax())]
        telling = [(label, group.metrics.get(("own", key))) for key, label in TELLING.items()]
        figures = [f"{label} {metric.text('')[0]} %" for label, metric in telling if metric is not None]
        more = f" These figures say more ({group.name}, own client): {', '.join(figures)}." if figures else ""
        return (
            f"{100 * share:.1f} % of all samples are of class '{name}': to answer '{name}' to every query would be "
            f"right as often.{more}"
        )
    return None


def _bars(group: RunGroup, others: Sequence[RunGroup]) -> list[Bar]:
    """The bars. Beside a router that was fitted after the last round, all figures are of that round."""
    bars = []
    system = headline("system", group.by_measure)
    fitted_last = system is not None and group.first.averaged(system) == 1

    def score(of: RunGroup, measure: Measure) -> Score:
        return of.after_last_round(measure) if fitted_last else of.scores[measure]

    if system is not None:
        guide = GUIDES.get(system.rule, "")
        words = "when guided" if guide else UNGUIDED.get(system.rule, f"by the rule '{rule_label(system.rule)}'")
        source = f"{group.name}, {guide}" if guide else group.name
        bars.append(Bar(words, source, score(group, system), guided=bool(guide)))
    shared = Measure("global")
    owner = next((one for one in (group, *others) if shared in one.scores), None)
    if owner is not None:
        bars.append(Bar("by one global model", owner.name, score(owner, shared)))
    own = next((m for kind in ("oracle", "average") if (m := Measure(kind)) in group.scores), None)
    if own is not None:
        each = "each " if group.first.quantity == "c_index" else ""
        bars.append(Bar(f"{each}at its own client", group.name, score(group, own)))
    return bars


def _same_data(group: RunGroup, groups: Sequence[RunGroup]) -> list[RunGroup]:
    keys = {record.data_key for record in group.records}
    return [g for g in groups if g is not group and keys & {record.data_key for record in g.records}]


def main_table(table: RunTable, links: bool = False) -> Table | None:
    """A row for every run, two for one with both routers. Rows and columns without a value are left out.

    The first cell's detail says how queries of unknown origin are answered.
    """
    names: list[TableCell] = []
    figures: list[Column] = []
    for number, group in enumerate(table.groups):
        for rule in _rules(group):
            badge, link = "" if group.finished else group.first.status, f"#run-{number + 1}" if links else ""
            names.append(TableCell(group.name, GUIDES.get(rule, rule_label(rule)), badge=badge, link=link))
            figures.append([(number, Measure(kind, rule if kind in BY_RULE else "")) for kind in MAIN_MEASURES])
    # A column has a vote beside a router, so the best is that of the column, not that of all votes.
    columns_of_figures = zip(*figures, strict=True)
    cells = [[table.cell(number, m, DASH, column) for number, m in column] for column in columns_of_figures]
    rows = [row for row in zip(names, zip(*cells, strict=True), strict=True) if _has_value(row[1])]
    shown = [place for place in range(len(MAIN_MEASURES)) if _has_value(cells[place] for _, cells in rows)]
    kinds = [list(MAIN_MEASURES)[place] for place in shown]
    columns = tuple(TableColumn(TableCell(MAIN_MEASURES[kind], tip=TERMS[TERM_OF_KIND[kind]])) for kind in kinds)
    body = tuple(TableRow((name, *(cells[place] for place in shown))) for name, cells in rows)
    stub = (TableColumn(TableCell("Run"), "l"),)
    meanings = [f"{MAIN_MEASURES[kind]}: {MEANINGS[kind]}." for kind in kinds]
    caption = f"All test samples. {' '.join(meanings)} {table.unit}."
    return Table(stub, (ColumnGroup("", columns),), body, caption, "main") if rows else None


def _has_value(cells: Iterable[TableCell]) -> bool:
    return any(cell.text != DASH for cell in cells)


def _rules(group: RunGroup) -> list[str]:
    """Both routers if there are, else the rule that stands for the run."""
    guides = [rule for rule in GUIDES if Measure("system", rule) in group.scores]
    system = headline("system", group.by_measure)
    return guides or ["" if system is None else system.rule]
