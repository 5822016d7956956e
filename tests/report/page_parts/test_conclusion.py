"""Tests of the sentence that begins a report, and of its main measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddrm.data import load
from feddrm.io.page_files import TERMS
from feddrm.report.page_parts.conclusion import conclusion, main_table, one_class_note
from feddrm.report.run_table import RunTable, report_table

MakeRun = Callable[..., Path]


def with_scores(folder: Path, **scores: Any) -> Path:
    """A run whose summary has these means, and no others."""

    def spread(value: Any) -> Any:
        return {k: spread(v) for k, v in value.items()} if isinstance(value, dict) else {"mean": value, "std": 0.001}

    summary = json.loads((folder / "summary.json").read_text())
    kept = {key: value for key, value in summary.items() if not key.endswith(("_accuracy", "_c_index"))}
    (folder / "summary.json").write_text(json.dumps(kept | {key: spread(value) for key, value in scores.items()}))
    return folder


def sentence(table: RunTable) -> str:
    found = conclusion(table)
    assert found is not None
    return found.sentence


@pytest.fixture
def guided(make_run: MakeRun) -> Path:
    return with_scores(
        make_run("ours"),
        average_accuracy=0.9,
        oracle_accuracy=0.834,
        system_accuracy={"vote": 0.2, "head_density": 0.78, "exact_density": 0.8351, "stacked": 0.95},
        client_accuracy={"head_density": 0.9, "exact_density": 0.99},
    )


@pytest.fixture
def shared(make_run: MakeRun) -> Path:
    scores = {"average_accuracy": 0.77, "oracle_accuracy": 0.775, "global_accuracy": 0.7849}
    return with_scores(make_run("one", method="fedavg"), **scores, system_accuracy={"vote": 0.781})


def test_the_global_model_of_another_run_is_compared(guided: Path, shared: Path) -> None:
    """Whatever the order of the runs, and however good other answers are on the test samples."""
    for folders in ([guided, shared], [shared, guided]):
        found = conclusion(report_table(folders))
        assert found is not None
        assert found.sentence == (
            "A query of unknown origin: 84 % answered rightly when guided, 78 % by one global model, "
            "83 % at its own client."
        )
        assert [(bar.source, bar.guided) for bar in found.bars] == [
            ("ours, exact router", True),
            ("one", False),
            ("ours", False),
        ]


def test_beside_a_router_of_the_last_round_all_figures_are_of_that_round(guided: Path, shared: Path) -> None:
    """A mean over the last rounds of a model that still improves is too low beside it."""
    summary = json.loads((guided / "summary.json").read_text())
    summary["system_accuracy"]["exact_density"]["std"] = None
    (guided / "summary.json").write_text(json.dumps(summary))
    for folder, late in ((guided, {"oracle_accuracy": 0.91}), (shared, {"global_accuracy": 0.82})):
        *lines, last = (folder / "metrics.jsonl").read_text().splitlines()
        changed = json.dumps({**json.loads(last), **late})
        (folder / "metrics.jsonl").write_text("\n".join([*lines, changed]) + "\n")
    assert sentence(report_table([guided, shared])) == (
        "A query of unknown origin: 84 % answered rightly when guided, 82 % by one global model, "
        "91 % at its own client."
    )


def test_a_global_model_on_other_data_is_not_compared_and_the_run_is_named(guided: Path, make_run: MakeRun) -> None:
    stranger = with_scores(make_run("b", method="fedavg", federation=load("digits", clients=3)), global_accuracy=0.9)
    assert sentence(report_table([guided, stranger])) == (
        "A query of unknown origin (run ours): 84 % answered rightly when guided, 83 % at its own client."
    )


def test_the_words_follow_what_the_run_has(make_run: MakeRun, shared: Path) -> None:
    assert sentence(report_table([shared])) == (
        "A query of unknown origin: 78 % answered rightly by a vote of all clients, 78 % by one global model, "
        "78 % at its own client."
    )
    published = with_scores(make_run("p"), system_accuracy={"head_density": 0.7}, average_accuracy=0.8)
    assert sentence(report_table([published])) == (
        "A query of unknown origin: 70 % answered rightly when guided, 80 % at its own client."
    )
    own = with_scores(make_run("own"), average_accuracy=0.8)
    assert sentence(report_table([own])) == "A query: 80 % answered rightly at its own client."
    named = with_scores(make_run("named"), system_accuracy={"my_rule": 0.5}, oracle_accuracy=0.8)
    assert "50 % answered rightly by the rule 'my rule'," in sentence(report_table([named]))
    nothing = report_table([with_scores(make_run("nothing"))])
    assert conclusion(nothing) is None
    assert main_table(nothing) is None


def test_survival_is_told_by_pairs(make_run: MakeRun) -> None:
    folder = with_scores(make_run("a"), system_c_index={"exact_density": 0.71}, oracle_c_index=0.7, global_c_index=0.68)
    facts = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps({**facts, "task": {"name": "survival"}}))
    assert sentence(report_table([folder])) == (
        "Queries of unknown origin: 71 % of pairs in the right order of risk when guided, 68 % by one global model, "
        "70 % each at its own client."
    )


def test_seeds_and_unfinished_runs_are_named(make_seeds: Callable[..., list[Path]], make_run: MakeRun) -> None:
    table = report_table(make_seeds("a", [0.6, 0.7, 0.8]))
    mean = table.groups[0].scores[next(m for m in table.columns if m.rule == "head_density")].mean
    assert sentence(table).startswith(
        f"A query of unknown origin, mean of 3 seeds: {100 * mean:.0f} % answered rightly when guided, "
    )
    live = sentence(report_table([make_run("live", finished=False)]))
    assert live.startswith("A query of unknown origin, after round 30 of 60: ")


def test_the_main_measures_have_a_row_for_every_router_and_no_empty_one(
    guided: Path, shared: Path, make_run: MakeRun
) -> None:
    empty = with_scores(make_run("empty", method="local"))
    main = main_table(report_table([guided, shared, empty]), links=True)
    assert main is not None
    rows = [[cell.text for cell in row.cells] for row in main.rows]
    assert rows == [
        ["ours", "83.51", "–", "83.40", "99.00"],
        ["ours", "78.00", "–", "83.40", "90.00"],
        ["one", "78.10", "78.49", "77.50", "–"],
    ]
    assert [row.cells[0].detail for row in main.rows] == ["exact router", "published head", "vote"]
    assert [row.cells[0].link for row in main.rows] == ["#run-1", "#run-1", "#run-2"]
    tips = [column.header.tip for column in main.columns[1:]]
    terms = ("system accuracy", "global model", "oracle accuracy", "client accuracy")
    assert tips == [TERMS[term] for term in terms]
    alone = main_table(report_table([shared]))
    assert alone is not None
    assert "Right client" not in alone.caption
    assert [column.header.text for column in alone.columns] == ["Run", "Unknown origin", "Global model", "Own client"]


def test_the_best_is_that_of_its_column_not_of_all_votes(make_seeds: Callable[..., list[Path]]) -> None:
    """A global model's vote beats the vote of personal models, which nobody uses, and is behind their router."""
    ours, theirs = make_seeds("ours", [0.8] * 3), make_seeds("one", [0.8] * 3, method="fedavg")
    for more, (run, other) in zip((0.0, 0.001, 0.003), zip(ours, theirs, strict=True), strict=True):
        routers = {"vote": 0.2, "head_density": 0.75 - more, "exact_density": 0.85 + more}
        with_scores(run, system_accuracy=routers, oracle_accuracy=0.9, client_accuracy={"exact_density": 0.9})
        with_scores(other, system_accuracy={"vote": 0.8 - more}, oracle_accuracy=0.7 + more)
    table = report_table([*ours, *theirs])
    main = main_table(table)
    assert main is not None
    texts = [[cell.formatted(str, "{}*").split()[0] for cell in row.cells[1:]] for row in main.rows]
    assert texts == [["85.13*", "90.00*", "90.00"], ["74.87", "90.00*", "–"], ["79.87", "70.13", "–"]]
    votes = [row for row in table.text_rows() if row[0] == "system (vote)"]
    assert "*" in votes[0][2]  # the table of all measures compares vote with vote


def with_counts(folder: Path, *counts: int) -> RunTable:
    """The table of a run whose clients have so many samples of the first classes, and no others."""
    facts = json.loads((folder / "data.json").read_text())
    for client in facts["clients"]:
        client["class_counts"] = [*counts, *([0] * (len(facts["classes"]) - len(counts)))]
    (folder / "data.json").write_text(json.dumps(facts))
    return report_table([folder])


def test_where_nearly_all_samples_are_of_one_class_it_is_said(make_run: MakeRun) -> None:
    assert one_class_note(report_table([make_run("even")])) is None
    folder = make_run("rare")
    assert one_class_note(with_counts(folder, 89, 11)) is None
    summary = json.loads((folder / "summary.json").read_text())
    values = {"balanced_accuracy": 0.5, "auroc": 0.87754}
    summary["metrics"] = {"own": {key: {"value": value, "interval": [0, 1]} for key, value in values.items()}}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert one_class_note(with_counts(folder, 1, 49)) == (
        "98.0 % of all samples are of class '1': to answer '1' to every query would be right as often. These figures "
        "say more (rare, own client): balanced accuracy 50.00 %, AUROC 87.75 %."
    )
    summary.pop("metrics")
    (folder / "summary.json").write_text(json.dumps(summary))
    note = one_class_note(with_counts(folder, 49, 1))
    assert note == "98.0 % of all samples are of class '0': to answer '0' to every query would be right as often."
