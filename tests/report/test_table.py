from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from feddrm.report.build import report_table
from feddrm.report.measures import Measure
from feddrm.report.table import Table, latex_escape

MakeRun = Callable[..., Path]


@pytest.fixture
def three(make_run: MakeRun) -> Table:
    return report_table(
        [
            make_run("a_1", method="feddrm", skill=0.7),
            make_run("b&2", method="fedavg", skill=0.8),
            make_run("c", method="fedrep", skill=1.0, finished=False),
        ]
    )


def test_text_shows_percent_with_two_decimals(three: Table, make_run: MakeRun) -> None:
    header, rows = three.header(), three.text_rows()
    assert header[:4] == ["run", "method", "average", "system (vote)"]
    assert header[-3:] == ["global", "oracle", "state"]
    average = three.records[0].scores[Measure("average")]
    assert rows[0][:3] == ["a_1", "feddrm", f"{100 * average.mean:.2f} ± 0.42"]
    assert [row[-1] for row in rows] == ["finished", "finished", "unfinished: round 30 of 60"]
    alone = report_table([make_run("alone")])
    assert alone.header() == ["run", "alone"]
    rows = alone.text_rows()
    assert rows[:2] == [["method", "feddrm"], ["state", "finished"]]
    assert rows[2][0] == "average"
    assert rows[2][1].endswith("± 0.42")


def test_a_measure_only_one_run_has_is_a_dash_elsewhere(make_run: MakeRun) -> None:
    folders = [make_run("a"), make_run("b")]
    summary = json.loads((folders[1] / "summary.json").read_text())
    summary["client_accuracy"] = {}
    summary["system_accuracy"] = {"vote": {"mean": 0.5, "std": 0.0}, "my_rule": {"mean": 0.1, "std": None}}
    (folders[1] / "summary.json").write_text(json.dumps(summary))
    table = report_table(folders)
    header, rows = table.header(), table.text_rows()
    assert rows[1][header.index("client (head, density)")] == "–"
    assert rows[0][header.index("system (my rule)")] == "–"
    assert rows[1][header.index("system (my rule)")] == "10.00"
    assert header.index("system (my rule)") == header.index("system (head, posterior)") + 1
    assert not table.best(1, Measure("system", "my_rule"))


def test_csv_round_trips(three: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(three.csv())))
    assert [row["run"] for row in rows] == ["a_1", "b&2", "c"]
    for row, record in zip(rows, three.records, strict=True):
        for measure, score in record.scores.items():
            key = f"{measure.kind}_accuracy" + (f".{measure.rule}" if measure.rule else "")
            assert float(row[f"{key}.mean"]) == score.mean
            assert row[f"{key}.std"] == ("" if score.std is None else repr(score.std))
    assert [row["finished"] for row in rows] == ["True", "True", "False"]


def test_values_have_the_shape_of_a_summary(three: Table) -> None:
    value = json.loads(json.dumps(three.values()))[1]
    summary = json.loads((three.records[1].folder / "summary.json").read_text())
    assert value["average_accuracy"] == summary["average_accuracy"]
    assert value["client_accuracy"] == summary["client_accuracy"]
    del summary["system_accuracy"]["global"]
    assert value["system_accuracy"] == summary["system_accuracy"]
    assert (value["run"], value["method"], value["finished"], value["rounds"]) == ("b&2", "fedavg", True, 60)


def test_latex_is_balanced_escaped_and_bold_at_the_best_finished_run(three: Table) -> None:
    text = three.latex()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = 2 + len(three.columns)
    assert all(len(re.split(r"(?<!\\)&", line)) == columns for line in body[1:])
    first, second, third = body[2:]
    assert first.startswith(r"a\_1 & feddrm")
    assert second.startswith(r"b\&2 & fedavg")
    assert third.startswith("c (unfinished: round 30 of 60) & fedrep")
    assert [line.count(r"\textbf") for line in (first, second, third)] == [0, len(three.columns), 0]
    average = three.records[1].scores[Measure("average")]
    assert rf"& \textbf{{{100 * average.mean:.2f}}} $\pm$ 0.42 &" in second


def test_one_run_has_no_best(make_run: MakeRun) -> None:
    table = report_table([make_run("a")])
    assert r"\textbf" not in table.latex()
    assert "<strong>" not in table.html()
    mixed = report_table([make_run("b"), make_run("c", finished=False)])
    assert "<strong>" not in mixed.html()


def test_ties_to_the_digits_shown_are_all_bold(make_run: MakeRun) -> None:
    table = report_table([make_run("a", skill=0.8), make_run("b", skill=0.8 + 1e-9)])
    assert all(table.best(row, measure) for row in (0, 1) for measure in table.columns)


def test_html_names_its_columns_and_bolds_the_best(three: Table) -> None:
    html = three.html(links=True)
    rows = re.findall(r"<tr>.*?</tr>", html)
    assert [row.count("<strong>") for row in rows] == [0, 0, 0, len(three.columns), 0]
    assert '<a href="#run-2">b&amp;2</a>' in rows[3]
    assert '<span class="badge">unfinished: round 30 of 60</span>' in rows[4]
    assert 'colspan="3" class="group">System accuracy' in rows[0]


def test_runs_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    folders = [make_run("x/seed0"), make_run("y/seed0"), make_run("z"), make_run("w/x/other")]
    assert report_table([*folders, folders[2]]).names == ("x/seed0", "y/seed0", "z", "other")


def test_latex_escape() -> None:
    assert latex_escape(r"\a_b{c}%$#&~^<>") == (
        r"\textbackslash{}a\_b\{c\}\%\$\#\&\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}"
    )
