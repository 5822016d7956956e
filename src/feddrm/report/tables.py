"""The table of a report, as data and as text, CSV, LaTeX, HTML and plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Any

from feddrm.report.measures import BY_RULE, Measure, Score
from feddrm.report.run import RunRecord

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
TITLES = {"system": "System accuracy", "client": "Client accuracy"}


@dataclass(frozen=True, eq=False)
class Table:
    """Runs by measures: every measure that any of them has."""

    names: tuple[str, ...]
    records: tuple[RunRecord, ...]
    columns: tuple[Measure, ...]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> Table:
        measures = {measure for record in records for measure in record.scores}
        return cls(distinct_names(records), tuple(records), tuple(sorted(measures, key=lambda m: m.order)))

    def score(self, row: int, measure: Measure) -> Score | None:
        return self.records[row].scores.get(measure)

    @cached_property
    def comparable(self) -> bool:
        """Whether all runs were asked the same: only then can one be the best."""
        return len({record.data_key for record in self.records}) == 1

    @property
    def sideways(self) -> bool:
        """A router brings a dozen measures: where there are more of them than runs, each has a row of its own."""
        return len(self.columns) > len(self.records)

    def best(self, row: int, measure: Measure) -> bool:
        """Whether a finished run leads in a measure, to the digits shown; one run alone leads nothing."""
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
        """The terminal's header."""
        if self.sideways:
            return ["run", *self.names]
        return ["run", "method", *(m.title for m in self.columns), *(["state"] if self._some_unfinished else [])]

    def text_rows(self) -> list[list[str]]:
        """Rows under :meth:`header`: percent ± standard deviation, a dash where there is nothing."""
        cells = [[str(self.score(i, m) or "–") for m in self.columns] for i in range(len(self.records))]
        methods, states = [r.method for r in self.records], [r.status for r in self.records]
        if self.sideways:
            scores = [[m.title, *row] for m, row in zip(self.columns, zip(*cells, strict=True), strict=True)]
            return [["method", *methods], ["state", *states], *scores]
        return [
            [name, method, *row, *([state] if self._some_unfinished else [])]
            for name, method, row, state in zip(self.names, methods, cells, states, strict=True)
        ]

    def values(self) -> list[dict[str, Any]]:
        """Plain values, accuracies as fractions, in the shape of ``summary.json``."""
        return [self._plain(i) for i in range(len(self.records))]

    def csv(self) -> str:
        """One line per run, fractions in full precision, empty where there is nothing."""
        keys = [f"{m.kind}_accuracy{f'.{m.rule}' if m.rule else ''}" for m in self.columns]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        facts = ["run", "method", "data", "model", "finished", "round", "rounds"]
        writer.writerow(facts + [f"{key}.{part}" for key in keys for part in ("mean", "std")])
        for i, plain in enumerate(self.values()):
            cells: list[object] = [plain[key] for key in facts]
            for measure in self.columns:
                score = self.score(i, measure)
                cells += ["", ""] if score is None else [score.mean, score.std]
            writer.writerow(cells)
        return out.getvalue()

    def latex(self) -> str:
        """A ``tabular`` for a paper; needs the package booktabs."""
        names = [
            latex_escape(name if record.finished else f"{name} ({record.status})")
            for name, record in zip(self.names, self.records, strict=True)
        ]
        methods = [latex_escape(record.method) for record in self.records]
        scores = [
            [_latex_score(self.score(i, m), self.best(i, m)) for m in self.columns] for i in range(len(self.records))
        ]
        if self.sideways:
            head, form = [["Run", *names]], "l" + "r" * len(names)
            titles = [latex_escape(m.title.capitalize()) for m in self.columns]
            body = [
                ["Method", *methods],
                *([t, *row] for t, row in zip(titles, zip(*scores, strict=True), strict=True)),
            ]
        else:
            head, form = self._latex_head(), "ll" + "r" * len(self.columns)
            body = [[name, method, *row] for name, method, row in zip(names, methods, scores, strict=True)]
        lines = [rf"% {self.caption} Needs \usepackage{{booktabs}}.", rf"\begin{{tabular}}{{{form}}}", r"\toprule"]
        lines += [" & ".join(row) + r" \\" for row in head] + [r"\midrule"]
        lines += [" & ".join(row) + r" \\" for row in body]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def _latex_head(self) -> list[list[str]]:
        """What the columns of an upright table are called, system and client accuracies under a title."""
        names = ["Run", "Method", *(latex_escape(m.label.capitalize()) for m in self.columns)]
        groups = self._groups()
        if not any(kind in TITLES for kind, _ in groups):
            return [names]
        above, rules, at = [r"\multicolumn{2}{l}{}"], [], 3
        for kind, measures in groups:
            above.append(rf"\multicolumn{{{len(measures)}}}{{c}}{{{TITLES.get(kind, '')}}}")
            if kind in TITLES:
                rules.append(rf"\cmidrule(lr){{{at}-{at + len(measures) - 1}}}")
            at += len(measures)
        names[0] = " ".join(rules) + "\n" + names[0]  # a rule stands between the lines
        return [above, names]

    def html(self, links: bool = False) -> str:
        """A table element; with ``links``, every name leads to the run's section ``#run-<number>``."""
        names = []
        for i, record in enumerate(self.records):
            name = f'<a href="#run-{i + 1}">{escape(self.names[i])}</a>' if links else escape(self.names[i])
            state = "" if record.finished else f' <span class="badge">{escape(record.status)}</span>'
            names.append(name + state)
        head, body = self._html_sideways(names) if self.sideways else self._html_upright(names)
        kind = ' class="side"' if self.sideways else ""
        return f"<table{kind}><caption>{self.caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"

    @property
    def caption(self) -> str:
        """How to read the figures, and what they cannot be compared with."""
        text = "Accuracy in percent, mean ± standard deviation over the reporting window"
        text += "" if not self._some_single else "; figures without ± are of the last round alone"
        if len(self.records) == 1:
            return f"{text}."
        if not self.comparable:
            return f"{text}. These runs do not share their data: none is marked as the best."
        return f"{text}; the best finished run of each measure in bold."

    @property
    def _some_single(self) -> bool:
        scores = [score for record in self.records for score in record.scores.values()]
        return any(score.std is None for score in scores) and any(score.std is not None for score in scores)

    def _html_sideways(self, names: Sequence[str]) -> tuple[str, str]:
        head = "".join(f'<th scope="col" class="num">{name}</th>' for name in names)
        methods = "".join(f'<td class="num">{escape(record.method)}</td>' for record in self.records)
        rows = [f'<tr><th scope="row">Method</th>{methods}</tr>']
        for measure in self.columns:
            cells = "".join(
                _html_score(self.score(i, measure), self.best(i, measure)) for i in range(len(self.records))
            )
            rows.append(f'<tr><th scope="row">{escape(measure.title.capitalize())}</th>{cells}</tr>')
        return f'<tr><th scope="col">Run</th>{head}</tr>', "".join(rows)

    def _html_upright(self, names: Sequence[str]) -> tuple[str, str]:
        groups = self._groups()
        deep = any(kind in TITLES for kind, _ in groups)
        span = ' rowspan="2"' if deep else ""
        first = [f'<th scope="col"{span}>Run</th>', f'<th scope="col"{span}>Method</th>']
        second = []
        for kind, measures in groups:
            if kind in TITLES:
                first.append(f'<th scope="colgroup" colspan="{len(measures)}" class="group">{TITLES[kind]}</th>')
                second += [f'<th scope="col" class="num">{escape(m.label)}</th>' for m in measures]
            else:
                first.append(f'<th scope="col" class="num"{span}>{escape(kind.capitalize())}</th>')
        head = f"<tr>{''.join(first)}</tr>" + (f"<tr>{''.join(second)}</tr>" if deep else "")
        body = []
        for i, (name, record) in enumerate(zip(names, self.records, strict=True)):
            cells = "".join(_html_score(self.score(i, m), self.best(i, m)) for m in self.columns)
            body.append(f'<tr><th scope="row">{name}</th><td>{escape(record.method)}</td>{cells}</tr>')
        return head, "".join(body)

    @property
    def _some_unfinished(self) -> bool:
        return not all(record.finished for record in self.records)

    def _groups(self) -> list[tuple[str, list[Measure]]]:
        return [(kind, list(measures)) for kind, measures in groupby(self.columns, key=lambda m: m.kind)]

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
    """Folder names; where two agree, as many parent folders as it takes to tell them apart."""
    paths = [record.folder.parts for record in records]
    longest = max(len(parts) for parts in paths)
    for depth in range(1, longest + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    # Only those that need it carry their parents.
    short = [record.name for record in records]
    return tuple(name if short.count(plain) > 1 else plain for name, plain in zip(names, short, strict=True))


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def _latex_score(score: Score | None, best: bool) -> str:
    if score is None:
        return "--"
    mean = rf"\textbf{{{100 * score.mean:.2f}}}" if best else f"{100 * score.mean:.2f}"
    return mean if score.std is None else rf"{mean} $\pm$ {100 * score.std:.2f}"


def _html_score(score: Score | None, best: bool) -> str:
    if score is None:
        return '<td class="num none">–</td>'
    mean = f"<strong>{100 * score.mean:.2f}</strong>" if best else f"{100 * score.mean:.2f}"
    spread = "" if score.std is None else f'<span class="std"> ± {100 * score.std:.2f}</span>'
    return f'<td class="num">{mean}{spread}</td>'
