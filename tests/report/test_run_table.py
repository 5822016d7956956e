"""Tests of the table of runs: terminal, HTML, LaTeX, CSV and plain values."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from feddrm.data import load
from feddrm.report.accuracy_measures import Measure
from feddrm.report.run_table import RunTable, report_table

MakeRun = Callable[..., Path]


@pytest.fixture
def three(make_run: MakeRun) -> RunTable:
    return report_table(
        [
            make_run("a_1", method="feddrm", skill=0.7),
            make_run("b&2", method="fedavg", skill=0.8),
            make_run("c", method="fedrep", skill=1.0, finished=False),
        ]
    )


@pytest.fixture
def many(make_run: MakeRun) -> RunTable:
    """More runs than measures."""
    return report_table([make_run(f"r{i}", skill=0.7 + i / 40, finished=i < 9) for i in range(10)])


def test_where_runs_are_few_every_measure_has_a_row(three: RunTable, make_run: MakeRun) -> None:
    """A router adds a dozen measures, too many columns for a terminal of 80 letters."""
    assert three.header() == ["run", "a_1", "b&2", "c"]
    rows = three.text_rows()
    assert rows[0] == ["method", "feddrm", "fedavg", "fedrep"]
    assert rows[1] == ["state", "finished", "finished", "unfinished: round 30 of 60"]
    assert [row[0] for row in rows[2:]] == [measure.title for measure in three.columns]
    average = three.records[0].scores[Measure("average")]
    assert rows[2][:2] == ["average", f"{100 * average.mean:.2f} ± 0.42"]
    alone = report_table([make_run("alone")])
    assert alone.header() == ["run", "alone"]
    assert alone.text_rows()[:2] == [["method", "feddrm"], ["state", "finished"]]


def test_where_runs_are_many_every_run_has_a_row(many: RunTable) -> None:
    header, rows = many.header(), many.text_rows()
    assert header[:4] == ["run", "method", "average", "system (vote)"]
    assert header[-3:] == ["global", "oracle", "state"]
    average = many.records[0].scores[Measure("average")]
    assert rows[0][:3] == ["r0", "feddrm", f"{100 * average.mean:.2f} ± 0.42"]
    assert [row[-1] for row in rows] == ["finished"] * 9 + ["unfinished: round 30 of 60"]
    html = re.findall(r"<tr>.*?</tr>", many.table(links=True).to_html())
    assert 'colspan="3" class="group">System accuracy' in html[0]
    assert [row.count("<strong>") for row in html] == [0] * 10 + [len(many.columns), 0]
    assert '<a href="#run-9">r8</a>' in html[10]
    assert '<span class="badge">unfinished: round 30 of 60</span>' in html[11]


def test_runs_on_different_data_have_no_best(make_run: MakeRun) -> None:
    """Eighty percent on one dataset is not better than seventy on another."""
    table = report_table([make_run("a", skill=0.8), make_run("b", skill=0.7, federation=load("digits", clients=3))])
    assert "<strong>" not in table.table().to_html()
    assert r"\textbf" not in table.latex()
    assert "do not share their data" in table.caption
    assert "in bold" not in table.caption


def test_the_caption_says_which_figures_are_of_one_round(make_run: MakeRun) -> None:
    """The exact router is measured once, after the last round: beside means of a window that must be said."""
    folder = make_run("a")
    assert "last round alone" not in report_table([folder]).caption
    summary = json.loads((folder / "summary.json").read_text())
    summary["system_accuracy"]["exact_density"] = {"mean": 0.5, "std": None}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "figures without ± are of the last round alone" in report_table([folder]).caption


def test_a_measure_only_one_run_has_is_a_dash_elsewhere(make_run: MakeRun) -> None:
    folders = [make_run("a"), make_run("b")]
    summary = json.loads((folders[1] / "summary.json").read_text())
    summary["client_accuracy"] = {}
    summary["system_accuracy"] = {"vote": {"mean": 0.5, "std": 0.0}, "my_rule": {"mean": 0.1, "std": None}}
    (folders[1] / "summary.json").write_text(json.dumps(summary))
    table = report_table(folders)
    rows = {row[0]: row[1:] for row in table.text_rows()}
    assert rows["client (head, density)"][1] == "–"
    assert rows["system (my rule)"] == ["–", "10.00"]
    assert list(rows).index("system (my rule)") == list(rows).index("system (head, posterior)") + 1
    assert not table.best(1, Measure("system", "my_rule"))


def test_csv_round_trips(three: RunTable) -> None:
    rows = list(csv.DictReader(io.StringIO(three.csv())))
    assert [row["run"] for row in rows] == ["a_1", "b&2", "c"]
    for row, record in zip(rows, three.records, strict=True):
        for measure, score in record.scores.items():
            key = f"{measure.kind}_accuracy" + (f".{measure.rule}" if measure.rule else "")
            assert float(row[f"{key}.mean"]) == score.mean
            assert row[f"{key}.std"] == ("" if score.std is None else repr(score.std))
    assert [row["finished"] for row in rows] == ["True", "True", "False"]


def test_values_have_the_shape_of_a_summary(three: RunTable) -> None:
    value = json.loads(json.dumps(three.values()))[1]
    summary = json.loads((three.records[1].folder / "summary.json").read_text())
    assert value["average_accuracy"] == summary["average_accuracy"]
    assert value["client_accuracy"] == summary["client_accuracy"]
    del summary["system_accuracy"]["global"]
    assert value["system_accuracy"] == summary["system_accuracy"]
    assert (value["run"], value["method"], value["finished"], value["rounds"]) == ("b&2", "fedavg", True, 60)


def latex_rows(table: RunTable) -> list[list[str]]:
    """The cells of every line, after a look at what LaTeX would stumble over."""
    text = table.latex()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    lines = [line.removesuffix(r" \\") for line in text.splitlines() if line.endswith(r"\\")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)&", line)] for line in lines]
    (form,) = re.findall(r"\\begin{tabular}{(l+r+)}", text)
    assert {len(row) for row in rows if "multicolumn" not in row[0]} == {len(form)}
    return rows


def test_latex_of_few_runs_has_a_row_per_measure(three: RunTable) -> None:
    """As in the terminal: twenty columns fit no page."""
    names, methods, average, *rest = latex_rows(three)
    assert names == ["Run", r"a\_1", r"b\&2", "c (unfinished: round 30 of 60)"]
    assert methods == ["Method", "feddrm", "fedavg", "fedrep"]
    score = three.records[1].scores[Measure("average")]
    assert average[:1] + average[2:3] == ["Average", rf"\textbf{{{100 * score.mean:.2f}}} $\pm$ 0.42"]
    assert [[cell.count(r"\textbf") for cell in row] for row in rest] == [[0, 0, 1, 0]] * (len(three.columns) - 1)


def test_latex_of_many_runs_has_a_row_per_run(many: RunTable) -> None:
    above, names, *rows = latex_rows(many)
    assert above[2] == r"\multicolumn{3}{c}{System accuracy}"
    assert names[:4] == ["Run", "Method", "Average", "Vote"]
    assert [row[:2] for row in rows[:9]] == [[f"r{i}", "feddrm"] for i in range(9)]
    assert [sum(r"\textbf" in cell for cell in row) for row in rows] == [0] * 8 + [len(many.columns), 0]
    assert r"\cmidrule(lr){4-6} \cmidrule(lr){7-8}" in many.latex()


def test_one_run_has_no_best(make_run: MakeRun) -> None:
    table = report_table([make_run("a")])
    assert r"\textbf" not in table.latex()
    assert "<strong>" not in table.table().to_html()
    mixed = report_table([make_run("b"), make_run("c", finished=False)])
    assert "<strong>" not in mixed.table().to_html()


def test_ties_to_the_digits_shown_are_all_bold(make_run: MakeRun) -> None:
    table = report_table([make_run("a", skill=0.8), make_run("b", skill=0.8 + 1e-9)])
    assert all(table.best(row, measure) for row in (0, 1) for measure in table.columns)


def test_html_names_its_rows_and_bolds_the_best(three: RunTable) -> None:
    head, method, *rows = re.findall(r"<tr>.*?</tr>", three.table(links=True).to_html())
    assert '<a href="#run-2">b&amp;2</a>' in head
    assert '<span class="badge">unfinished: round 30 of 60</span>' in head
    assert "fedavg" in method
    assert len(rows) == len(three.columns)
    for row, measure in zip(rows, three.columns, strict=True):
        assert row.startswith(f'<tr><th scope="row">{measure.title.capitalize()}</th>')
        cells = re.findall(r"<td.*?</td>", row)
        assert [cell.count("<strong>") for cell in cells] == [0, 1, 0]


def test_runs_of_one_name_get_their_parent_folders(make_run: MakeRun) -> None:
    folders = [make_run("x/seed0"), make_run("y/seed0"), make_run("z"), make_run("w/x/other")]
    assert report_table([*folders, folders[2]]).names == ("x/seed0", "y/seed0", "z", "other")
