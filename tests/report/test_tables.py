"""Tests of the table renderer: one table in Markdown, LaTeX and HTML; plain values in CSV."""

from __future__ import annotations

import csv
import io

from feddrm.report.tables import ColumnGroup, Table, TableCell, TableColumn, TableRow, latex_escape, to_csv

GROUPED = Table(
    stub=(TableColumn(TableCell("Run"), "l"),),
    groups=(
        ColumnGroup("", (TableColumn(TableCell("Average")),)),
        ColumnGroup("System accuracy", (TableColumn(TableCell("Vote")), TableColumn(TableCell("α = 1"), "c"))),
    ),
    rows=(
        TableRow((TableCell("a_1"), TableCell("62.15", "± 0.22", bold=True), TableCell("–"), TableCell("x|y"))),
        TableRow(
            (TableCell("b", badge="half done", link="#b"), TableCell("1"), TableCell("2", "(−3.00)"), TableCell("<i>")),
            rule_above=True,
        ),
    ),
    caption='a "quoted" caption',
    css_class="side",
)


def test_markdown() -> None:
    assert GROUPED.to_markdown() == (
        "| Run | Average | system accuracy, Vote | system accuracy, α = 1 |\n"
        "|---|---|---|---|\n"
        "| a_1 | **62.15** ± 0.22 | – | x\\|y |\n"
        "| b (half done) | 1 | 2 (−3.00) | <i> |"
    )


def test_an_empty_corner_in_markdown_is_one_space() -> None:
    assert Table.of(["", "n"], [["a", 1]]).to_markdown() == "| | n |\n|---|---|\n| a | 1 |"


def test_latex() -> None:
    assert GROUPED.to_latex() == (
        "\\begin{tabular}{lrrc}\n"
        "\\toprule\n"
        " & \\multicolumn{1}{c}{} & \\multicolumn{2}{c}{System accuracy} \\\\\n"
        "\\cmidrule(lr){3-4}\n"
        "Run & Average & Vote & $\\alpha$ = 1 \\\\\n"
        "\\midrule\n"
        "a\\_1 & \\textbf{62.15} $\\pm$ 0.22 & – & x|y \\\\\n"
        "\\midrule\n"
        "b (half done) & 1 & 2 ($-$3.00) & \\textless{}i\\textgreater{} \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}"
    )


def test_html_has_two_lines_of_headers_under_a_title() -> None:
    assert GROUPED.to_html() == (
        '<table class="side"><caption>a &#34;quoted&#34; caption</caption><thead><tr>'
        '<th scope="col" rowspan="2">Run</th><th scope="col" class="num" rowspan="2">Average</th>'
        '<th scope="colgroup" colspan="2" class="group">System accuracy</th></tr>'
        '<tr><th scope="col" class="num">Vote</th><th scope="col">α = 1</th></tr></thead><tbody>'
        '<tr><th scope="row">a_1</th><td class="num"><strong>62.15</strong><span class="std"> ± 0.22</span></td>'
        '<td class="num none">–</td><td>x|y</td></tr>'
        '<tr><th scope="row"><a href="#b">b</a> <span class="badge">half done</span></th><td class="num">1</td>'
        '<td class="num">2<span class="std"> (−3.00)</span></td><td>&lt;i&gt;</td></tr></tbody></table>'
    )


def test_columns_of_plain_numbers_are_aligned_to_the_right() -> None:
    table = Table.of(["name", "n", "mixed", "none"], [[1, 2.5, "2", "–"], [2, "–", "x", "–"]])
    assert [column.align for column in table.columns] == ["l", "r", "l", "r"]
    assert not table.has_titles


def test_csv_quotes_text_and_leaves_missing_values_empty() -> None:
    text = to_csv(["a", "b"], [['x,"y"', 0.1], [None, ""]])
    assert list(csv.reader(io.StringIO(text))) == [["a", "b"], ['x,"y"', "0.1"], ["", ""]]
    assert text.endswith(",\n")


def test_latex_escape() -> None:
    assert latex_escape(r"\a_b{c}%$#&~^<>") == (
        r"\textbackslash{}a\_b\{c\}\%\$\#\&\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}"
    )
