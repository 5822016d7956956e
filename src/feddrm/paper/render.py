"""A table as Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby

from feddrm.errors import SettingError
from feddrm.paper.tables import Entry, Table
from feddrm.report.tables import latex_escape

CAPTION = (
    "Accuracy in percent: ours, mean ± standard deviation over the window; in brackets the paper's and our difference "
    "from it. Bold: the best of what has been run. 'missing': not run yet; '–': the method has no such thing."
)
GAPS = {"missing": "missing", "no router": "no router yet", "none": "–", "": ""}


def render(parts: Sequence[Table], form: str, notes: Mapping[str, str] | None = None) -> str:
    """All parts of a table in one of the :data:`FORMATS`; ``notes`` mark entries by ``cell measure``."""
    if form not in FORMATS:
        raise SettingError(f"unknown format '{form}': choose one of {', '.join(FORMATS)}")
    return FORMATS[form](parts, notes or {})


def markdown(parts: Sequence[Table], notes: Mapping[str, str]) -> str:
    """Pipe tables, as GitHub shows them."""
    blocks = []
    for table in parts:
        names = [f"{group[:1].lower()}{group[1:]}, {name}" if group else name for group, name in _heads(table)]
        lines = [f"**{table.title}** ({table.count[0]} of {table.count[1]})", ""]
        lines += ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
        for i, row in enumerate(table.rows):
            cells = [_mark(e, notes, _text(e, table.best(i, j), "**", "**")) for j, e in enumerate(row.entries)]
            lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, CAPTION]) + "\n"


def latex(parts: Sequence[Table], notes: Mapping[str, str]) -> str:
    """``tabular`` environments after the paper's own; they need the package booktabs."""
    blocks = [r"% needs \usepackage{booktabs}; " + CAPTION.replace("%", r"\%")]
    for table in parts:
        lines = [f"% {table.title}", rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule"]
        if any(table.groups):
            head, at = [""], 2
            rules = []
            for group, run in groupby(table.groups):
                width = len(list(run))
                head.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex(group)}}}")
                rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}" if group else "")
                at += width
            lines += [" & ".join(head) + r" \\", " ".join(filter(None, rules))]
        lines += [" & ".join(["Method", *map(_latex, table.columns)]) + r" \\", r"\midrule"]
        for i, row in enumerate(table.rows):
            if row.line:
                lines.append(r"\midrule")
            texts = [
                _mark(e, notes, _text(e, table.best(i, j), r"\textbf{", "}", r"$\pm$", "$-$"))
                for j, e in enumerate(row.entries)
            ]
            lines.append(" & ".join([_latex(row.label), *texts]) + r" \\")
        blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks) + "\n"


def html(parts: Sequence[Table], notes: Mapping[str, str]) -> str:
    """``table`` elements, for any page."""
    blocks = []
    for table in parts:
        head = "".join(f'<th scope="col">{escape(f"{g}, {n}" if g else n)}</th>' for g, n in _heads(table))
        body = []
        for i, row in enumerate(table.rows):
            texts = (
                _mark(e, notes, _text(e, table.best(i, j), "<strong>", "</strong>")) for j, e in enumerate(row.entries)
            )
            cells = "".join(f"<td>{text}</td>" for text in texts)
            body.append(f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>')
        caption = f"<caption>{escape(table.title)}. {escape(CAPTION)}</caption>"
        blocks.append(f"<table>{caption}<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>")
    return "\n".join(blocks) + "\n"


def long_csv(parts: Sequence[Table], notes: Mapping[str, str]) -> str:
    """One line per entry, accuracies as fractions, empty where there is nothing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["table", "row", "column", "cell", "measure", "mean", "std", "paper_mean", "paper_std", "points", "gap", "note"]
    )
    for table in parts:
        for row, column, e in table.entries():
            ours = ["", ""] if e.ours is None else [e.ours.mean, e.ours.std]
            paper = ["", ""] if e.paper is None else [round(e.paper.mean, 6), round(e.paper.std or 0, 6)]
            points = "" if e.difference is None else round(e.difference, 4)
            note = notes.get(f"{e.cell} {e.measure}", "")
            writer.writerow([table.title, row.label, column, e.cell, e.measure, *ours, *paper, points, e.gap, note])
    return out.getvalue()


FORMATS: dict[str, Callable[[Sequence[Table], Mapping[str, str]], str]] = {
    "md": markdown,
    "latex": latex,
    "csv": long_csv,
    "html": html,
}


def signed(points: float, minus: str = "−") -> str:
    """A difference with its sign."""
    return f"+{points:.2f}" if points >= 0 else f"{minus}{-points:.2f}"


def _heads(table: Table) -> list[tuple[str, str]]:
    return list(zip(table.groups, table.columns, strict=True))


def _text(entry: Entry, best: bool, bold: str, end: str, pm: str = "±", minus: str = "−") -> str:
    """``62.15 ± 0.22 (62.78, −0.63)``; a gap is a word, never a number."""
    if entry.ours is None:
        text = GAPS[entry.gap]
    else:
        text = f"{100 * entry.ours.mean:.2f}"
        text = f"{bold}{text}{end}" if best else text
        text += "" if entry.ours.std is None else f" {pm} {100 * entry.ours.std:.2f}"
    if entry.paper is None:
        return text
    difference = "" if entry.difference is None else f", {signed(entry.difference, minus)}"
    return f"{text} ({100 * entry.paper.mean:.2f}{difference})"


def _mark(entry: Entry, notes: Mapping[str, str], text: str) -> str:
    noted = entry.paper is not None and f"{entry.cell} {entry.measure}" in notes
    return f"{text} *" if noted else text


def _latex(text: str) -> str:
    return latex_escape(text).replace("α", r"$\alpha$").replace("λ", r"$\lambda$")
