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
from feddrm.report.accuracy_measures import BEST, Measure
from feddrm.report.run_table import RunTable, report_table

MakeRun = Callable[..., Path]
MakeSeeds = Callable[..., list[Path]]


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
    assert header[:5] == ["run", "method", "average", "system (best)", "system (vote)"]
    assert header[-3:] == ["global", "oracle", "state"]
    average = many.records[0].scores[Measure("average")]
    assert rows[0][:3] == ["r0", "feddrm", f"{100 * average.mean:.2f} ± 0.42"]
    assert [row[-1] for row in rows] == ["finished"] * 9 + ["unfinished: round 30 of 60"]
    html = re.findall(r"<tr>.*?</tr>", many.table(links=True).to_html())
    assert 'colspan="4" class="group">System accuracy' in html[0]
    assert not any("<strong>" in row for row in html)  # runs of one seed: the difference says nothing
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


def test_a_metric_without_an_interval_says_why(make_run: MakeRun) -> None:
    folder = make_run("one", metrics=True)
    summary = json.loads((folder / "summary.json").read_text())
    summary["metrics"]["own"]["accuracy"]["interval"] = None
    (folder / "summary.json").write_text(json.dumps(summary))
    table = report_table([folder])
    metrics = table.metric_table()
    assert metrics is not None
    shown = {row.cells[0].text: row.cells[1].formatted(str, "{}") for row in metrics.rows}
    assert shown["own: accuracy"] == "80.00 (no interval: one subject)"
    (row,) = csv.DictReader(io.StringIO(table.csv()))
    assert [row[f"metrics.own.accuracy.{part}"] for part in ("value", "low", "high")] == ["0.8", "", ""]


def test_metrics_of_the_answers_have_a_table_of_their_own(make_run: MakeRun, make_seeds: MakeSeeds) -> None:
    old = report_table([make_run("old")])
    assert old.metric_table() is None
    assert old.latex().count("tabular") == 2
    folders = [make_run("one", method="fedavg", metrics=True), *make_seeds("two", [0.7, 0.8], metrics=True)]
    table = report_table([*folders, make_run("bare", method="local")])
    metrics = table.metric_table()
    assert metrics is not None
    rows = {row.cells[0].text: [cell.formatted(str, "{}") for cell in row.cells[1:]] for row in metrics.rows}
    assert rows["own: accuracy"] == ["80.00 [78.00, 81.00]", "75.00 ± 7.07", "–"]
    assert rows["own: AUROC"] == ["98.77 [96.77, 99.77] (error at most 0.04)", "98.77 ± 0.00", "–"]
    assert rows["system: Brier score"][0] == "0.1235 [0.1035, 0.1335]"
    assert rows["own: worst client's accuracy"][0].endswith(f"] {table.records[0].clients[1].name}")
    assert "system: AUROC" not in rows
    assert "own: sensitivity" not in rows
    assert table.latex().count(r"\begin{tabular}") == 2
    assert r"own: AUROC & 98.77 [96.77, 99.77]" in table.latex()
    lines = list(csv.DictReader(io.StringIO(table.csv())))
    assert [line["metrics.own.accuracy.value"] for line in lines] == ["0.8", "0.7", "0.8", ""]
    assert float(lines[0]["metrics.own.accuracy.low"]) == pytest.approx(0.78)
    one, two, bare = table.values()
    assert one["metrics"]["own"]["worst_client"]["name"] == table.records[0].clients[1].name
    assert two["metrics"]["system"]["accuracy"]["value"] == pytest.approx(0.7)
    assert "metrics" not in bare
    assert "95 % bootstrap intervals" in metrics.caption
    assert metrics.caption.endswith("± is the standard deviation over seeds.")


def test_a_caption_names_intervals_where_there_are_some(make_run: MakeRun, make_seeds: MakeSeeds) -> None:
    over_seeds = report_table(make_seeds("two", [0.7, 0.8], metrics=True)).metric_table()
    single = report_table([make_run("one", metrics=True)]).metric_table()
    assert over_seeds is not None
    assert single is not None
    assert "interval" not in over_seeds.caption
    assert "95 % bootstrap intervals" in single.caption
    assert "over seeds" not in single.caption


def test_what_was_sent_stands_beside_the_method(make_run: MakeRun) -> None:
    """In millions of bytes to three digits; of an older run with a dash, and of older runs alone not at all."""
    sizes = {"a": 61_234, "b": 0, "c": 3_456_789}
    folders = [make_run(name, method=name, each=each) for name, each in sizes.items()]
    table = report_table([*folders, make_run("old")])
    shown = {row[0]: row[1:] for row in table.text_rows()[2:4]}
    assert shown == {"MB per client and round": ["0.122", "0", "6.91", "–"], "MB in total": ["14.7", "0", "830", "–"]}
    rows = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.table(dash="--").rows}
    assert rows["MB in total"] == ["14.7", "0", "830", "--"]
    assert "MB (a million bytes) are the tensors of the rounds" in table.caption
    assert "MB in total & 14.7 & 0 & 830 & -- \\" in table.latex()
    lines = list(csv.DictReader(io.StringIO(table.csv())))
    assert [line["communication.bytes_total"] for line in lines] == ["14696160.0", "0.0", "829629360.0", ""]
    assert lines[0]["communication.bytes_per_client_and_round"] == "122468.0"
    first, *_, old = table.values()
    assert first["communication"] == {"bytes_per_client_and_round": 122468.0, "bytes_total": 14696160.0}
    assert "communication" not in old
    many = report_table([*folders, *(make_run(f"r{i}", skill=0.7 + i / 40) for i in range(7))])
    assert many.header()[:5] == ["run", "method", "MB per client and round", "MB in total", "average"]
    assert many.text_rows()[0][:4] == ["a", "a", "0.122", "14.7"]
    alone = report_table([folders[0].parent / "old"])
    assert not any("MB" in text for row in alone.text_rows() for text in row)
    assert "MB" not in alone.caption + alone.csv()


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
    assert average[:1] + average[2:3] == ["Average", rf"{100 * score.mean:.2f} $\pm$ 0.42"]
    assert len(rest) == len(three.columns) - 1


def test_latex_of_many_runs_has_a_row_per_run(many: RunTable) -> None:
    above, names, *rows = latex_rows(many)
    assert above[2] == r"\multicolumn{4}{c}{System accuracy}"
    assert names[:5] == ["Run", "Method", "Average", "Best", "Vote"]
    assert [row[:2] for row in rows[:9]] == [[f"r{i}", "feddrm"] for i in range(9)]
    assert r"\cmidrule(lr){4-7} \cmidrule(lr){8-9}" in many.latex()


def test_one_run_has_no_best(make_run: MakeRun) -> None:
    table = report_table([make_run("a")])
    assert r"\textbf" not in table.latex()
    assert "<strong>" not in table.table().to_html()
    mixed = report_table([make_run("b"), make_run("c", finished=False)])
    assert "<strong>" not in mixed.table().to_html()


def test_html_names_its_rows(three: RunTable) -> None:
    head, method, *rows = re.findall(r"<tr>.*?</tr>", three.table(links=True).to_html())
    assert '<a href="#run-2">b&amp;2</a>' in head
    assert '<span class="badge">unfinished: round 30 of 60</span>' in head
    assert "fedavg" in method
    assert len(rows) == len(three.columns)
    for row, measure in zip(rows, three.columns, strict=True):
        assert row.startswith(f'<tr><th scope="row">{measure.title.capitalize()}</th>')
        assert len(re.findall(r"<td.*?</td>", row)) == 3


def test_runs_of_one_name_get_their_parent_folders(make_run: MakeRun) -> None:
    folders = [make_run("x/seed0"), make_run("y/seed0"), make_run("z"), make_run("w/x/other")]
    assert report_table([*folders, folders[2]]).names == ("x/seed0", "y/seed0", "z", "other")


@pytest.fixture
def seeded(make_seeds: MakeSeeds) -> RunTable:
    """Method b is better than a on every seed, by 1 to 3 points."""
    a = make_seeds("a", [0.60, 0.70, 0.80], method="fedavg")
    b = make_seeds("b", [0.62, 0.71, 0.83], method="feddrm")
    return report_table([*a, *b])


def test_the_best_is_marked_where_the_paired_difference_says_so(seeded: RunTable, make_seeds: MakeSeeds) -> None:
    """The seeds spread by ten points, and the methods differ by two: unpaired, nothing could be said."""
    average = Measure("average")
    assert [seeded.best(row, average) for row in (0, 1)] == [False, False]  # 2 +- 1 of three seeds: 2 less 2.5
    difference = seeded.groups[1].less(seeded.groups[0], average)
    assert difference is not None
    assert difference.seeds == 3
    assert not difference.positive
    more = report_table([
        *make_seeds("m/a", [0.60, 0.70, 0.80, 0.65, 0.75], method="fedavg"),
        *make_seeds("m/b", [0.62, 0.71, 0.83, 0.67, 0.77], method="feddrm"),
    ])  # fmt: skip
    assert [more.best(row, average) for row in (0, 1)] == [False, True]
    assert more.table().to_html().count("<strong>") == len(more.columns)
    rows = {row[0]: row[1:] for row in more.text_rows()}
    mean = 100 * more.groups[1].scores[average].mean
    assert rows["average"][1].startswith(f"{mean:.2f}* ± ")
    assert rows["seeds"] == ["5", "5"]
    assert "In bold: better than every other, by the 95 % intervals" in more.caption


def test_one_seed_marks_nothing(make_run: MakeRun) -> None:
    table = report_table([make_run("a", skill=0.6), make_run("b", method="fedavg", skill=0.9)])
    assert not any(table.best(row, measure) for row in (0, 1) for measure in table.columns)
    assert "None is marked as the best: that takes two seeds in common" in table.caption
    assert table.difference_rows()[1] == []
    (value, _) = table.values()
    assert value["differences"][0]["interval"] is None


def test_a_method_without_common_seeds_prevents_a_claim(make_seeds: MakeSeeds, make_run: MakeRun) -> None:
    skills = [0.60, 0.70, 0.80, 0.65, 0.75]
    folders = make_seeds("a", skills) + make_seeds("b", [s + 0.1 + s / 50 for s in skills], method="fedavg")
    assert report_table(folders).best(1, Measure("average"))
    stranger = make_run("c", method="fedrep", skill=0.6, seed=9)
    assert not report_table([*folders, stranger]).best(1, Measure("average"))
    unfinished = make_run("d", method="fedrep", skill=0.9, seed=0, finished=False)
    assert report_table([*folders, unfinished]).best(1, Measure("average"))


def test_a_lower_figure_is_never_marked(make_seeds: MakeSeeds) -> None:
    """After the last round the first method is better, but its mean over the window is shown, which is lower."""
    skills = [0.80, 0.85, 0.90, 0.82]
    a, b = make_seeds("a", skills), make_seeds("b", [s - 0.1 - s / 50 for s in skills], method="fedavg")
    average = Measure("average")
    assert report_table([*a, *b]).best(0, average)
    for folder, figure in [(f, {"mean": 0.5, "std": 0.1}) for f in a] + [(f, {"mean": 0.7, "std": None}) for f in b]:
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "average_accuracy": figure}))
    table = report_table([*a, *b])
    difference = table.groups[0].less(table.groups[1], average)
    assert difference is not None
    assert difference.positive
    assert [table.best(row, average) for row in (0, 1)] == [False, False]


def add_rule(folder: Path, rule: str, mean: float) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    summary["system_accuracy"][rule] = {"mean": mean, "std": None}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_methods_are_compared_at_their_best(make_seeds: MakeSeeds) -> None:
    """A vote that is best among votes is not the best answer: another method's stack may be better."""
    a = make_seeds("a", [0.60, 0.61, 0.63, 0.60], method="feddrm")
    b = make_seeds("b", [0.70, 0.72, 0.73, 0.71], method="fedavg")
    for folder, mean in zip(a, (0.80, 0.82, 0.84, 0.80), strict=True):
        add_rule(folder, "stacked", mean)
    table = report_table([*a, *b])
    vote = Measure("system", "vote")
    assert [table.best(row, BEST) for row in (0, 1)] == [True, False]
    assert [table.best(row, vote) for row in (0, 1)] == [False, True]
    assert not table.best(0, Measure("system", "stacked"))  # nobody else has one
    rows = {row[0]: row[1:] for row in table.text_rows()}
    assert rows["system (best)"][0] == "81.50* ± 1.91 (stacked)"
    assert rows["system (best)"][1].endswith("(head, posterior)")
    assert list(rows).index("system (best)") == list(rows).index("system (vote)") - 1
    best = table.values()[0]["best_system_accuracy"]
    assert (best["answer"], round(best["mean"], 9)) == ("stacked", 0.815)
    assert "system_accuracy.best" in {difference["accuracy"] for difference in table.values()[0]["differences"]}
    assert "chosen on the test samples" in table.caption
    assert "a fitted router is measured after the last round, all else over the window" in table.caption
    assert BEST not in report_table(a).columns  # nothing to compare with


def test_a_figure_that_some_seeds_lack_says_so(make_seeds: MakeSeeds) -> None:
    folders = make_seeds("a", [0.6, 0.7, 0.8])
    for folder in folders[:2]:
        add_rule(folder, "stacked", 0.9)
    table = report_table([*folders, *make_seeds("b", [0.6, 0.65, 0.7], method="fedavg")])
    rows = {row[0]: row[1:] for row in table.text_rows()}
    assert rows["system (stacked)"][0] == "90.00 ± 0.00 (2 of 3 seeds)"
    assert "stacked" not in rows["system (best)"][0]


def test_differences_are_listed_for_every_two_groups(seeded: RunTable, make_run: MakeRun) -> None:
    header, rows = seeded.difference_rows()
    assert header == ["difference", "seeds", "average", "system (best)"]
    (row,) = rows
    assert row[:2] == ["a less b", "3"]
    assert re.fullmatch(r"-\d\.\d\d \[-\d\.\d\d, \+\d\.\d\d\]", row[2])
    alone = [folder for group in seeded.groups for folder in (group.first.folder,)]
    assert report_table(alone).difference_rows()[1] == []
    assert "a less b" not in report_table(alone).latex()


def test_latex_has_the_differences_with_real_minus_signs(seeded: RunTable) -> None:
    (row,) = seeded.difference_rows()[1]
    tabular = seeded.latex().rpartition("\n\n")[2]
    assert tabular.startswith("% Paired differences in percentage points")
    assert r"Difference & Seeds & Average & System (best) \\" in tabular
    assert " & ".join(cell.replace("-", "$-$") for cell in row) + r" \\" in tabular


def test_a_single_run_beside_groups_has_no_spread_of_its_own(seeded: RunTable, make_run: MakeRun) -> None:
    folders = [record.folder for record in seeded.records]
    table = report_table([*folders, make_run("c", method="fedrep")])
    rows = {row[0]: row[1:] for row in table.text_rows()}
    assert rows["seeds"] == ["3", "3", "1"]
    assert ["±" in cell for cell in rows["average"]] == [True, True, False]
    assert "figures without ± are of one seed" in table.caption


def test_csv_has_every_run_with_its_group_and_seed(seeded: RunTable) -> None:
    rows = list(csv.DictReader(io.StringIO(seeded.csv())))
    assert [(row["run"], row["group"], row["seed"]) for row in rows][:4] == [
        *(("a/seed-0", "a", "0"), ("a/seed-1", "a", "1"), ("a/seed-2", "a", "2"), ("b/seed-0", "b", "0")),
    ]
    assert float(rows[0]["average_accuracy.mean"]) == seeded.records[0].scores[Measure("average")].mean
    assert not any("best" in key for key in rows[0])
