"""The table of a report: runs by measures, for the terminal, HTML, LaTeX, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from feddrm.errors import SettingError
from feddrm.report.accuracy_measures import BY_RULE, Measure, Score
from feddrm.report.run_record import RunRecord
from feddrm.report.tables import DASH, ColumnGroup, Table, TableCell, TableColumn, TableRow, to_csv

TITLES = {"system": "System accuracy", "client": "Client accuracy"}
FACTS = ("run", "method", "data", "model", "finished", "round", "rounds")


def report_table(folders: Sequence[Path]) -> RunTable:
    """Read run folders into their table; a folder that is given twice counts once."""
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    if not distinct:
        raise SettingError("there is no run to report: name at least one run folder")
    return RunTable.of([RunRecord.read(folder) for folder in distinct])


@dataclass(frozen=True, eq=False)
class RunTable:
    """Runs and every measure that at least one of them has."""

    names: tuple[str, ...]
    records: tuple[RunRecord, ...]
    columns: tuple[Measure, ...]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> RunTable:
        measures = {measure for record in records for measure in record.scores}
        return cls(distinct_names(records), tuple(records), tuple(sorted(measures, key=lambda m: m.order)))

    def score(self, row: int, measure: Measure) -> Score | None:
        return self.records[row].scores.get(measure)

    @cached_property
    def comparable(self) -> bool:
        """Whether all runs were tested on the same data: only then can one be the best."""
        return len({record.data_key for record in self.records}) == 1

    @property
    def sideways(self) -> bool:
        """Whether each measure has a row of its own: so if there are more measures than runs, as with a router."""
        return len(self.columns) > len(self.records)

    def best(self, row: int, measure: Measure) -> bool:
        """Whether a finished run leads in a measure, to the digits shown. A single run is never the best."""
        means = [
            round(100 * score.mean, 2)
            for record in self.records
            if record.finished and (score := record.scores.get(measure)) is not None
        ]
        score = self.score(row, measure)
        if score is None or len(means) < 2 or not self.comparable or not self.records[row].finished:
            return False
        return round(100 * score.mean, 2) == max(means)

    def header(self) -> list[str]:
        """The header of the terminal's table."""
        if self.sideways:
            return ["run", *self.names]
        return ["run", "method", *(m.title for m in self.columns), *(["state"] if self._some_unfinished else [])]

    def text_rows(self) -> list[list[str]]:
        """The rows under :meth:`header`: percent ± standard deviation, a dash where there is no value."""
        cells = [[str(self.score(i, m) or DASH) for m in self.columns] for i in range(len(self.records))]
        methods, states = [r.method for r in self.records], [r.status for r in self.records]
        if self.sideways:
            scores = [[m.title, *row] for m, row in zip(self.columns, zip(*cells, strict=True), strict=True)]
            return [["method", *methods], ["state", *states], *scores]
        return [
            [name, method, *row, *([state] if self._some_unfinished else [])]
            for name, method, row, state in zip(self.names, methods, cells, states, strict=True)
        ]

    def values(self) -> list[dict[str, Any]]:
        """Plain values, accuracies as fractions, in the form of ``summary.json``."""
        return [self._plain(i) for i in range(len(self.records))]

    def csv(self) -> str:
        """One line per run, with fractions in full precision; a cell without a value is empty."""
        keys = [f"{m.kind}_accuracy{f'.{m.rule}' if m.rule else ''}" for m in self.columns]
        rows = []
        for i, plain in enumerate(self.values()):
            cells: list[object] = [plain[key] for key in FACTS]
            for measure in self.columns:
                score = self.score(i, measure)
                cells += [None, None] if score is None else [score.mean, score.std]
            rows.append(cells)
        return to_csv([*FACTS, *(f"{key}.{part}" for key in keys for part in ("mean", "std"))], rows)

    def latex(self) -> str:
        """A ``tabular`` for a paper."""
        return f"% {self.caption} Needs \\usepackage{{booktabs}}.\n{self.table(dash='--').to_latex()}\n"

    def table(self, links: bool = False, dash: str = DASH) -> Table:
        """The formatted table; with ``links``, every name leads to the run's section ``#run-<number>``."""
        names = [
            TableCell(name, badge="" if record.finished else record.status, link=f"#run-{i}" if links else "")
            for i, (name, record) in enumerate(zip(self.names, self.records, strict=True), start=1)
        ]
        methods = [TableCell(record.method) for record in self.records]
        scores = [
            [_score_cell(self.score(i, m), self.best(i, m), dash) for m in self.columns]
            for i in range(len(self.records))
        ]
        if self.sideways:
            titles = [TableCell(m.title.capitalize()) for m in self.columns]
            by_measure = [(title, *row) for title, row in zip(titles, zip(*scores, strict=True), strict=True)]
            rows = [(TableCell("Method"), *methods), *by_measure]
            stub, groups = [TableCell("Run")], [("", names)]
        else:
            rows = [(name, method, *row) for name, method, row in zip(names, methods, scores, strict=True)]
            stub = [TableCell("Run"), TableCell("Method")]
            groups = [
                (TITLES.get(kind, ""), [TableCell(m.label.capitalize()) for m in measures])
                for kind, measures in groupby(self.columns, key=lambda m: m.kind)
            ]
        return Table(
            stub=tuple(TableColumn(header, "l") for header in stub),
            groups=tuple(ColumnGroup(title, tuple(map(TableColumn, headers))) for title, headers in groups),
            rows=tuple(map(TableRow, rows)),
            caption=self.caption,
            css_class="side" if self.sideways else "",
        )

    @property
    def caption(self) -> str:
        """How to read the figures, and whether the runs can be compared."""
        text = "Accuracy in percent, mean ± standard deviation over the reporting window"
        text += "" if not self._some_single else "; figures without ± are of the last round alone"
        if len(self.records) == 1:
            return f"{text}."
        if not self.comparable:
            return f"{text}. These runs do not share their data: none is marked as the best."
        return f"{text}; the best finished run of each measure in bold."

    @property
    def _some_single(self) -> bool:
        """Whether some scores are means over a window and others are of one round."""
        scores = [score for record in self.records for score in record.scores.values()]
        return any(score.std is None for score in scores) and any(score.std is not None for score in scores)

    @property
    def _some_unfinished(self) -> bool:
        return not all(record.finished for record in self.records)

    def _plain(self, row: int) -> dict[str, Any]:
        record = self.records[row]
        plain: dict[str, Any] = {
            "run": self.names[row],
            "folder": str(record.folder),
            "method": record.method,
            "data": record.data,
            "model": record.model,
            "finished": record.finished,
            "round": record.round,
            "rounds": record.rounds,
        }
        for measure in self.columns:
            score = self.score(row, measure)
            value = None if score is None else {"mean": score.mean, "std": score.std}
            if measure.kind in BY_RULE:
                plain.setdefault(f"{measure.kind}_accuracy", {})[measure.rule] = value
            else:
                plain[f"{measure.kind}_accuracy"] = value
        return plain


def distinct_names(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """The folder names; equal ones get as many parent folders as make them distinct."""
    paths = [record.folder.parts for record in records]
    longest = max(len(parts) for parts in paths)
    for depth in range(1, longest + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    short = [record.name for record in records]
    return tuple(name if short.count(plain) > 1 else plain for name, plain in zip(names, short, strict=True))


def _score_cell(score: Score | None, best: bool, dash: str) -> TableCell:
    return TableCell(dash) if score is None else TableCell(score.percent, score.spread, bold=best)
