"""The table of a report: groups of runs by measures, for the terminal, HTML, LaTeX, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError
from feddrm.report.accuracy_measures import ANSWERS, BEST, BY_RULE, METRIC_LABELS, Measure, Score, rule_label
from feddrm.report.run_group import RunGroup, distinct_names, find_runs, group_runs
from feddrm.report.run_record import RunRecord
from feddrm.report.tables import DASH, ColumnGroup, Table, TableCell, TableColumn, TableRow, to_csv

FACTS = ("run", "method", "data", "model", "finished", "round", "rounds")
Column = Sequence[tuple[int, Measure]]  # the group and the measure of every figure in a table's column
COMPARED = (Measure("average"), BEST)  # the measures whose paired differences a page has room for
SENT = ("MB per client and round", "MB in total")
SENT_KEYS = ("bytes_per_client_and_round", "bytes_total")
SENT_CAPTION = "; MB (a million bytes) are the tensors of the rounds, from the server and to it"
METRICS_CAPTION = (
    "Metrics of the answers after the last round, in percent (the Brier score as it is), pooled over all test samples."
)
METRICS_OF_ONE = (
    " In brackets: 95 % bootstrap intervals, resampled within every client by subject (without subjects, by sample)."
)
METRICS_OF_SEEDS = " ± is the standard deviation over seeds."
DIFFERENCES = (
    "Paired differences in percentage points on the same seeds and data: mean and 95 % t interval. Figures over "
    "unequal numbers of rounds are compared after the last round."
)


def report_table(folders: Sequence[Path]) -> RunTable:
    """Read run folders, and all runs below other folders, into their table."""
    return RunTable.of([RunRecord.read(folder) for folder in find_runs(folders)])


@dataclass(frozen=True, eq=False)
class RunTable:
    """Groups of runs and every measure that at least one of them has."""

    groups: tuple[RunGroup, ...]
    columns: tuple[Measure, ...]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> RunTable:
        if len({record.quantity for record in records}) > 1:
            raise FeddrmError("some runs are measured by accuracy, some by C-index: report them apart")
        groups = group_runs(records)
        measures = {measure for group in groups for measure in group.scores}
        if len(groups) == 1:
            measures.discard(BEST)  # nothing to compare it with
        return cls(groups, tuple(sorted(measures, key=lambda m: m.order)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(group.name for group in self.groups)

    @property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(record for group in self.groups for record in group.records)

    @property
    def title(self) -> str:
        """What the figures measure, and in which unit."""
        noun = self.groups[0].first.noun
        return f"{noun} in percent" if noun == "accuracy" else f"{noun} in percent (client: accuracy)"

    @property
    def seeded(self) -> bool:
        """Whether some group has several seeds. Then a single run has no spread: that over rounds is another one."""
        return any(len(group.records) > 1 for group in self.groups)

    def score(self, row: int, measure: Measure) -> Score | None:
        group = self.groups[row]
        score = group.scores.get(measure)
        return Score(score.mean) if score is not None and self.seeded and len(group.records) == 1 else score

    @cached_property
    def comparable(self) -> bool:
        """Whether every two groups were tested on the same data at least once: only then can one be the best."""
        keys = [{record.data_key for record in group.records} for group in self.groups]
        return all(one & other for one, other in combinations(keys, 2))

    @property
    def sideways(self) -> bool:
        """Whether each measure has a row of its own: so if there are more measures than groups, as with a router."""
        return len(self.columns) > len(self.groups)

    def best(self, row: int, measure: Measure, column: Column | None = None) -> bool:
        """Whether a figure is better than every other of finished groups in its column, by paired intervals.

        The figure shown must be the highest, too: differences may be of the last round or of common seeds alone.
        """
        column = [(i, measure) for i in range(len(self.groups))] if column is None else column
        shown = dict.fromkeys((self.groups[i], m) for i, m in column)
        rivals = [(group, m) for group, m in shown if group.finished and m in group.scores]
        one, several = (self.groups[row], measure), len({group for group, _ in rivals}) > 1
        if not several or one != max(rivals, key=lambda rival: rival[0].scores[rival[1]].mean):
            return False
        differences = [one[0].less(group, measure, m) for group, m in rivals if (group, m) != one]
        return all(difference is not None and difference.positive for difference in differences)

    @property
    def sent(self) -> dict[str, list[str]]:
        """Megabytes that each group has sent, by what they are of; empty if no run says."""
        sent = [group.sent for group in self.groups]
        if not any(sent):
            return {}
        each = [None if one is None else one.each for one in sent]
        total = [None if one is None else one.total for one in sent]
        return {title: list(map(_megabytes, values)) for title, values in zip(SENT, (each, total), strict=True)}

    def header(self) -> list[str]:
        """The header of the terminal's table."""
        if self.sideways:
            return ["run", *self.names]
        facts = ["run", "method", *(["seeds"] if self.seeded else []), *self.sent]
        return [*facts, *(m.title for m in self.columns), *(["state"] if self._some_unfinished else [])]

    def text_rows(self) -> list[list[str]]:
        """The rows under :meth:`header`: percent ± standard deviation, a dash without a value, a star at the best."""
        cells = [[self.cell(i, m, DASH).formatted(str, "{}*") for m in self.columns] for i in range(len(self.groups))]
        methods, states = [g.first.method for g in self.groups], [g.first.status for g in self.groups]
        seeds = [str(len(group.records)) for group in self.groups]
        if self.sideways:
            scores = [[m.title, *row] for m, row in zip(self.columns, zip(*cells, strict=True), strict=True)]
            facts = [["method", *methods], ["state", *states], *([["seeds", *seeds]] if self.seeded else [])]
            return [*facts, *([title, *figures] for title, figures in self.sent.items()), *scores]
        facts = [list(self.names), methods, *([seeds] if self.seeded else []), *self.sent.values()]
        return [
            [*fact, *row, *([state] if self._some_unfinished else [])]
            for fact, row, state in zip(zip(*facts, strict=True), cells, states, strict=True)
        ]

    def difference_rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the paired differences of every two groups that share at least two seeds."""
        measures = [m for m in COMPARED if m in self.columns]
        rows = []
        for one, other in combinations(self.groups, 2):
            differences = [one.less(other, measure) for measure in measures]
            seeds = max((d.seeds for d in differences if d is not None), default=0)
            if seeds > 1:
                shown = [DASH if d is None else str(d) for d in differences]
                rows.append([f"{one.name} less {other.name}", str(seeds), *shown])
        return ["difference", "seeds", *(m.title for m in measures)], rows

    def difference_table(self, dash: str = DASH, minus: str = "-") -> Table | None:
        """The paired differences as a table; None where no two groups share two seeds."""
        header, rows = self.difference_rows()
        shown = [[*row[:2], *(dash if f == DASH else f.replace("-", minus) for f in row[2:])] for row in rows]
        return Table.of([name.capitalize() for name in header], shown, DIFFERENCES) if rows else None

    @property
    def has_intervals(self) -> bool:
        """Whether a metric is that of one run: those over several seeds have no interval."""
        return any(len(group.records) == 1 and group.metrics for group in self.groups)

    def metric_table(self, dash: str = DASH) -> Table | None:
        """The metrics of the answers, one row each; None if no run has any, as those of older versions."""
        rows = []
        for answers in ANSWERS:
            for metric, label in METRIC_LABELS.items():
                found = [group.metrics.get((answers, metric)) for group in self.groups]
                if any(one is not None for one in found):
                    cells = [TableCell(dash) if one is None else TableCell(*one.text(metric)) for one in found]
                    rows.append(TableRow((TableCell(f"{answers}: {label}"), *cells)))
        names = tuple(TableColumn(TableCell(name)) for name in self.names)
        stub = (TableColumn(TableCell("Answers: metric"), "l"),)
        caption = METRICS_CAPTION + METRICS_OF_ONE * self.has_intervals + METRICS_OF_SEEDS * self.seeded
        return Table(stub, (ColumnGroup("", names),), tuple(rows), caption, "side") if rows else None

    def values(self) -> list[dict[str, Any]]:
        """One entry per group, accuracies as fractions, in the form of ``summary.json``."""
        return [self._plain(i) for i in range(len(self.groups))]

    def csv(self) -> str:
        """One line per run, with fractions in full precision; a cell without a value is empty."""
        columns = [measure for measure in self.columns if measure != BEST]
        quantity = self.groups[0].first.quantity
        keys = [f"{_key(measure, quantity)}.{part}" for measure in columns for part in ("mean", "std")]
        metrics = [
            key for key in product(ANSWERS, METRIC_LABELS) if any(key in record.metrics for record in self.records)
        ]
        keys += [f"metrics.{answers}.{name}.{part}" for answers, name in metrics for part in ("value", "low", "high")]
        sent = [f"communication.{key}" for key in SENT_KEYS] if any(record.sent for record in self.records) else []
        names = distinct_names([record.folder for record in self.records])
        groups = [group.name for group in self.groups for _ in group.records]
        rows = []
        for name, group, record in zip(names, groups, self.records, strict=True):
            plain = _facts(name, record)
            scores = [record.scores.get(measure) for measure in columns]
            figures = [(None, None) if score is None else (score.mean, score.std) for score in scores]
            measured = [record.metrics.get(key) for key in metrics]
            figures += [(None,) * 3 if m is None else (m.value, *(m.interval or (None, None))) for m in measured]
            of_sent = (record.sent or (None, None))[: len(sent)]
            values = [value for part in (*figures, of_sent) for value in part]
            rows.append([*(plain[key] for key in FACTS), group, record.seed, *values])
        return to_csv([*FACTS, "group", "seed", *keys, *sent], rows)

    def latex(self) -> str:
        """A ``tabular`` for a paper, one of the metrics and one of the paired differences."""
        text = f"% {self.caption} Needs \\usepackage{{booktabs}}.\n{self.table(dash='--').to_latex()}\n"
        others = (self.metric_table(dash="--"), self.difference_table(dash="--", minus="−"))
        return "\n".join([text, *(f"% {other.caption}\n{other.to_latex()}\n" for other in others if other is not None)])

    def table(self, links: bool = False, dash: str = DASH) -> Table:
        """The formatted table; with ``links``, every name leads to the group's section ``#run-<number>``."""
        names = [
            TableCell(name, badge="" if g.finished else g.first.status, link=f"#run-{i}" if links else "")
            for i, (name, g) in enumerate(zip(self.names, self.groups, strict=True), start=1)
        ]
        facts = {"Method": [TableCell(group.first.method) for group in self.groups]}
        if self.seeded:
            facts["Seeds"] = [TableCell(str(len(group.records))) for group in self.groups]
        facts |= {title: [TableCell(dash if f == DASH else f) for f in figures] for title, figures in self.sent.items()}
        scores = [[self.cell(i, m, dash) for m in self.columns] for i in range(len(self.groups))]
        if self.sideways:
            titles = [TableCell(m.title.capitalize()) for m in self.columns]
            by_measure = [(title, *row) for title, row in zip(titles, zip(*scores, strict=True), strict=True)]
            rows = [*((TableCell(fact), *cells) for fact, cells in facts.items()), *by_measure]
            stub, groups = [TableCell("Run")], [("", names)]
        else:
            rows = [(*row[:-1], *row[-1]) for row in zip(names, *facts.values(), scores, strict=True)]
            stub = [TableCell("Run"), *map(TableCell, facts)]
            groups = [
                (self._title(kind), [TableCell(m.label.capitalize()) for m in measures])
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
    def unit(self) -> str:
        """What the figures measure, and over what they spread."""
        spread = "seeds" if self.seeded else "the reporting window"
        text = f"{self.title[0].upper()}{self.title[1:]}, mean ± standard deviation over {spread}"
        text += "; figures without ± are of the last round alone" if self._some_single and not self.seeded else ""
        text += "; figures without ± are of one seed" if self._some_single and self.seeded else ""
        if self.seeded and any(len(set(map(record.averaged, record.scores))) > 1 for record in self.records):
            text += "; a fitted router is measured after the last round, all else over the window"
        return text

    @property
    def caption(self) -> str:
        """How to read the figures, and whether the runs can be compared."""
        text = self.unit + (SENT_CAPTION if self.sent else "")
        if len(self.groups) == 1:
            return f"{text}."
        if BEST in self.columns:
            text += (
                ". System (best) is each run's best answer to a query of unknown origin, named in brackets; it is "
                "chosen on the test samples, which favours runs with many answers"
            )
        if not self.comparable:
            return f"{text}. These runs do not share their data: none is marked as the best."
        if not self.difference_rows()[1]:
            return f"{text}. None is marked as the best: that takes two seeds in common (feddrm train --seeds)."
        return f"{text}. In bold: better than every other, by the 95 % intervals of the paired differences."

    def _title(self, kind: str) -> str:
        """The title of the columns of a kind that has rules."""
        return {"system": f"System {self.groups[0].first.noun}", "client": "Client accuracy"}.get(kind, "")

    @property
    def _some_single(self) -> bool:
        """Whether some scores have a standard deviation and others have none."""
        scores = [self.score(i, m) for i in range(len(self.groups)) for m in self.columns]
        return len({score.std is None for score in scores if score is not None}) > 1

    @property
    def _some_unfinished(self) -> bool:
        return not all(group.finished for group in self.groups)

    def cell(self, row: int, measure: Measure, dash: str, column: Column | None = None) -> TableCell:
        """One score, with what must be known to read it: the best answer's name, or that some seeds lack it.

        It is bold if it is the best of its ``column``: of all groups by the same measure, unless others are given.
        """
        group, score = self.groups[row], self.score(row, measure)
        if score is None:
            return TableCell(dash)
        notes = [score.spread]
        if measure == BEST and group.best_answer is not None:
            notes.append(f"({rule_label(group.best_answer.rule or group.best_answer.kind)})")
        if (count := group.count(measure)) < len(group.records):
            notes.append(f"({count} of {len(group.records)} seeds)")
        return TableCell(score.percent, " ".join(filter(None, notes)), bold=self.best(row, measure, column))

    def _plain(self, row: int) -> dict[str, Any]:
        group = self.groups[row]
        folders = [str(record.folder) for record in group.records]
        plain = {**_facts(group.name, group.first), "folder": folders[0], "folders": folders, "seeds": group.seeds}
        quantity = group.first.quantity
        for measure in self.columns:
            score = self.score(row, measure)
            value = None if score is None else {"mean": score.mean, "std": score.std}
            if measure == BEST:
                answer = group.best_answer
                plain[f"best_system_{quantity}"] = value and answer and {"answer": answer.rule or answer.kind, **value}
            elif measure.kind in BY_RULE:
                plain.setdefault(measure.key(quantity), {})[measure.rule] = value
            else:
                plain[measure.key(quantity)] = value
        for (answers, name), metric in group.metrics.items():
            figure = {key: value for key, value in asdict(metric).items() if value not in (None, "")}
            plain.setdefault("metrics", {}).setdefault(answers, {})[name] = figure
        if group.sent is not None:
            plain["communication"] = dict(zip(SENT_KEYS, group.sent, strict=True))
        plain["differences"] = [
            {
                "less": other.name,
                "accuracy": _key(measure, quantity),
                "seeds": difference.seeds,
                "mean": difference.mean,
                "standard_error": difference.error,
                "interval": difference.interval,
            }
            for other in self.groups[row + 1 :]
            for measure in self.columns
            if (difference := group.less(other, measure)) is not None
        ]
        return plain


def _megabytes(count: float | None) -> str:
    """Millions of bytes to three digits."""
    if count is None:
        return DASH
    return f"{count / 1e6:,.0f}" if count >= 1e8 else f"{count / 1e6:.3g}"


def _facts(name: str, record: RunRecord) -> dict[str, Any]:
    return {
        "run": name,
        "method": record.method,
        "data": record.data,
        "model": record.model,
        "finished": record.finished,
        "round": record.round,
        "rounds": record.rounds,
    }


def _key(measure: Measure, quantity: str) -> str:
    """The name of a measure in files: ``system_accuracy.vote``."""
    return f"{measure.key(quantity)}{f'.{measure.rule}' if measure.rule else ''}"
