"""The table renderer: one ``Table`` of formatted cells as Markdown, LaTeX or HTML, and plain values as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from feddrm.report.html_templates import TEMPLATES

DASH = "–"  # stands where there is no value
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
    "±": r"$\pm$",
    "−": "$-$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
}


@dataclass(frozen=True)
class TableCell:
    """The content of one cell, as plain text: each format escapes it in its own way."""

    text: str
    detail: str = ""  # follows the text; HTML shows it smaller
    bold: bool = False  # the text, not the detail
    badge: str = ""  # a state such as "unfinished", in brackets where there is no HTML
    link: str = ""  # HTML only
    tip: str = ""  # HTML only: what the text means

    def formatted(self, escape: Callable[[str], str], bold: str) -> str:
        """One line of text; ``bold`` is a pattern such as ``**{}**``."""
        text = bold.format(escape(self.text)) if self.bold else escape(self.text)
        return " ".join(filter(None, [text, escape(self.detail), f"({escape(self.badge)})" if self.badge else ""]))


@dataclass(frozen=True)
class TableColumn:
    """A column's header and its alignment: left, centre or right."""

    header: TableCell
    align: Literal["l", "c", "r"] = "r"


@dataclass(frozen=True)
class ColumnGroup:
    """Neighbouring columns under one title; an empty title is not shown."""

    title: str
    columns: tuple[TableColumn, ...]


@dataclass(frozen=True)
class TableRow:
    """The cells of a row; the first one names it."""

    cells: tuple[TableCell, ...]
    rule_above: bool = False  # LaTeX only


@dataclass(frozen=True)
class Table:
    """Headers and rows. ``stub`` holds the columns that name the rows; ``groups`` all others."""

    stub: tuple[TableColumn, ...]
    groups: tuple[ColumnGroup, ...]
    rows: tuple[TableRow, ...]
    caption: str = ""  # HTML only: in Markdown and LaTeX, the caller writes the text around a table
    css_class: str = ""
    key: str = ""  # HTML only: the element's id

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> Table:
        """A table of plain values. Columns of numbers are aligned to the right."""
        cells = [[str(value) for value in row] for row in rows]
        columns = [
            TableColumn(TableCell(name), "r" if i and all(_is_number(row[i]) for row in cells) else "l")
            for i, name in enumerate(header)
        ]
        body = tuple(TableRow(tuple(map(TableCell, row))) for row in cells)
        return cls((columns[0],), (ColumnGroup("", tuple(columns[1:])),), body, caption)

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """All columns, from left to right."""
        return self.stub + tuple(column for group in self.groups for column in group.columns)

    @property
    def has_titles(self) -> bool:
        """Whether any group of columns has a title."""
        return any(group.title for group in self.groups)

    def to_markdown(self) -> str:
        """A pipe table as GitHub shows it; a group's title becomes part of the column's name."""
        names = [_markdown(column.header) for column in self.stub]
        for group in self.groups:
            title = f"{group.title[:1].lower()}{group.title[1:]}, " if group.title else ""
            names += [title + _markdown(column.header) for column in group.columns]
        lines = [names, *([_markdown(cell) for cell in row.cells] for row in self.rows)]
        head, *body = ["|" + "|".join(f" {text} " if text else " " for text in line) + "|" for line in lines]
        return "\n".join([head, "|" + "---|" * len(names), *body])

    def to_latex(self) -> str:
        """A ``tabular`` environment; it needs the package booktabs."""
        form = "".join(column.align for column in self.columns)
        lines = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", *(self._latex_titles() if self.has_titles else [])]
        lines += [_latex_line(column.header for column in self.columns), r"\midrule"]
        for row in self.rows:
            lines += [r"\midrule"] if row.rule_above else []
            lines.append(_latex_line(row.cells))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def _latex_titles(self) -> list[str]:
        """The line of group titles and the rules under them."""
        start = len(self.stub)
        titles, rules = ["" if start == 1 else rf"\multicolumn{{{start}}}{{l}}{{}}"], []
        for group in self.groups:
            end = start + len(group.columns)
            titles.append(rf"\multicolumn{{{end - start}}}{{c}}{{{latex_escape(group.title)}}}")
            rules += [rf"\cmidrule(lr){{{start + 1}-{end}}}"] if group.title else []
            start = end
        return [" & ".join(titles) + r" \\", " ".join(rules)]

    def to_html(self) -> str:
        """A ``table`` element."""
        return TEMPLATES.get_template("table.html.j2").render(table=self)


def to_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated plain values; None becomes an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def _latex_line(cells: Iterable[TableCell]) -> str:
    return " & ".join(cell.formatted(latex_escape, r"\textbf{{{}}}") for cell in cells) + r" \\"


def _markdown(cell: TableCell) -> str:
    return cell.formatted(lambda text: text.replace("|", r"\|"), "**{}**")


def _is_number(text: str) -> bool:
    return text == DASH or (text[:1].isdigit() and text.replace(".", "", 1).isdigit())
