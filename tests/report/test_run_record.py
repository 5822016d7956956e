"""Tests of reading a run folder: complete, unfinished and broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from feddrm.errors import FeddrmError
from feddrm.evaluation import confusion, confusion_as_plain
from feddrm.io.text import json_bytes
from feddrm.report.accuracy_measures import Measure, Score
from feddrm.report.run_record import RunRecord, _read_confusion

MakeRun = Callable[..., Path]


def cells(origin: int, route: int) -> str:
    """An evaluation of one client whose confusion has one cell."""
    vote = {"from": [origin], "to": [route], "count": [1]}
    return json.dumps({"per_client": [{"name": "a"}], "confusion": {"vote": vote}})


def test_a_finished_run_is_read_as_it_was_written(make_run: MakeRun) -> None:
    folder = make_run("first")
    record = RunRecord.read(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert (record.name, record.method, record.data, record.model) == ("first", "feddrm", "digits", "lenet")
    assert record.finished
    assert record.status == "finished"
    assert record.scores[Measure("average")] == Score(summary["average_accuracy"]["mean"], 0.00421)
    for rule in ("vote", "head_density", "head_posterior"):
        assert record.scores[Measure("system", rule)].mean == summary["system_accuracy"][rule]["mean"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert record.curve(Measure("client", "head_density")) == (
        [line["round"] for line in lines],
        [line["client_accuracy"]["head_density"] for line in lines],
    )
    assert record.confusion is not None
    assert record.confusion["head_density"].shape == (4, 4)
    assert [c.name for c in record.clients] == list(record.dataset.names if record.dataset else ())


def test_metrics_are_read_with_their_intervals(make_run: MakeRun) -> None:
    record = RunRecord.read(make_run("new", metrics=True))
    own = record.metrics["own", "auroc"]
    assert (own.value, own.interval, own.error_bound) == (0.98765, (0.98765 - 0.02, 0.98765 + 0.01), 0.0004)
    assert record.metrics["system", "worst_client"].name == record.clients[1].name
    assert ("system", "auroc") not in record.metrics, "null: undefined"
    assert record.class_confusion is not None
    assert record.class_confusion["own"].trace() == 80
    older = RunRecord.read(make_run("old"))
    assert (older.metrics, older.class_confusion) == ({}, {})


def test_what_was_sent_is_read_from_summary_and_lines(make_run: MakeRun) -> None:
    record = RunRecord.read(make_run("new", each=1000, tune=10))
    assert record.sent == (2000.0, 2 * (60 + 50) * 1000)
    assert [point.sent for point in record.points[-3:]] == [200_000, 210_000, 220_000], "only downloads while tuning"
    older = RunRecord.read(make_run("old"))
    assert (older.sent, older.points[-1].sent) == (None, None)
    only_tuned = make_run("only tuned", each=1000)
    summary = json.loads((only_tuned / "summary.json").read_text())
    del summary["communication"]["stages"]["train"]
    (only_tuned / "summary.json").write_text(json.dumps(summary))
    assert RunRecord.read(only_tuned).sent == (None, 240_000)


def test_an_unfinished_run_has_the_scores_of_its_last_round(make_run: MakeRun) -> None:
    folder = make_run("first", finished=False)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("evaluation.json", "data.json", "data.safetensors"):
        (folder / name).unlink()
    record = RunRecord.read(folder)
    assert not record.finished
    assert record.status == "unfinished: round 30 of 60"
    assert record.scores[Measure("average")] == Score(last["average_accuracy"], None)
    assert record.dataset is None
    assert record.clients == ()


def test_a_torn_last_line_is_ignored_and_a_repeated_round_counts_once(make_run: MakeRun) -> None:
    folder = make_run("first", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 30, "loss": 9.5, "average_accuracy": 0.25}\n{"round": 35, "stage": "tr')
    record = RunRecord.read(folder)
    assert [p.round for p in record.points] == [5, 10, 15, 20, 25, 30]
    assert record.points[-1].loss == 9.5
    assert dict(record.scores) == {Measure("average"): Score(0.25)}


def test_old_and_new_names_of_per_client_values_are_read(make_run: MakeRun) -> None:
    folder = make_run("first")
    row = {"name": "a", "test_samples": 7, "train": 9, "own_accuracy": 0.5, "density_accuracy": 0.25}
    rows = [row | {"density_recall": 1.0, "posterior_recall": None, "shift": "noise"}]
    (folder / "evaluation.json").write_text(json.dumps({"round": 60, "per_client": rows, "confusion": None}))
    (client,) = RunRecord.read(folder).clients
    assert (client.train, client.test) == (9, 7)
    assert client.values == {"own": 0.5, "head_density": 0.25, "recall_density": 1.0, "recall_posterior": None}


def test_folders_that_are_no_runs(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(FeddrmError, match=r"there is no folder '.*none': name the folder"):
        RunRecord.read(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FeddrmError, match=r"empty' is not a run \(no config.yaml\): name the folder that 'feddrm train'"
    ):
        RunRecord.read(tmp_path / "empty")
    early = make_run("early", finished=False)
    (early / "metrics.jsonl").write_text('{"rou')
    with pytest.raises(FeddrmError, match=r"nothing to report yet .* train it at least to its first evaluation"):
        RunRecord.read(early)
    (early / "metrics.jsonl").unlink()
    with pytest.raises(FeddrmError, match="nothing to report yet"):
        RunRecord.read(early)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.yaml", "a: [1", "not YAML"),
        ("config.yaml", "- 1", "expected a mapping, found list"),
        ("config.yaml", b"\xff\xfe", "not UTF-8 text"),
        ("metrics.jsonl", '{"round": 1\n{"round": 2}\n', "line 1 is not JSON"),
        ("metrics.jsonl", '{"loss": 1}\n', "line 1 has no whole number 'round'"),
        ("metrics.jsonl", '{"round": 1, "loss": "low"}\n', "loss should be a number, found str"),
        ("summary.json", '{"average_acc', "not JSON"),
        ("summary.json", "[1]", "expected an object, found list"),
        ("summary.json", '{"average_accuracy": {"mean": "high"}}', "average_accuracy.mean should be a number"),
        ("summary.json", '{"average_accuracy": 79.3}', "should be a fraction between 0 and 1, found 79.3"),
        ("summary.json", '{"system_accuracy": 0.5}', "system_accuracy should be a mapping, found float"),
        ("summary.json", '{"communication": 5}', "communication should be a mapping, found int"),
        ("summary.json", '{"communication": {"bytes_total": "5"}}', "communication.bytes_total should be a number"),
        ("metrics.jsonl", '{"round": 1, "communication": 5}\n', "communication should be a mapping, found int"),
        ("summary.json", '{"metrics": {"own": 1}}', "metrics.own should be a mapping, found int"),
        (
            "summary.json",
            '{"metrics": {"own": {"ece": {"value": 1}}}}',
            "metrics.own.ece should have an interval of two",
        ),
        (
            "summary.json",
            '{"metrics": {"own": {"ece": {"value": "x"}}}}',
            "metrics.own.ece should be a number, found str",
        ),
        ("evaluation.json", '{"class_confusion": {"own": [[1, 2]]}}', "class_confusion.own should be 1 by 1 counts"),
        ("evaluation.json", '{"per_client": [1]}', "per_client should be a list of objects with a 'name'"),
        ("evaluation.json", '{"confusion": {"vote": [[1, 2]]}}', "confusion.vote should be 1 by 1 counts"),
        ("evaluation.json", '{"confusion": {"vote": 5}}', "confusion.vote should be 1 by 1 counts"),
        ("evaluation.json", '{"confusion": {"vote": [["x"]]}}', "confusion.vote is not a table of counts"),
        ("evaluation.json", '{"confusion": {"vote": {"from": [0]}}}', "confusion.vote is not a table of counts"),
        ("evaluation.json", cells(-1, 0), "confusion.vote is not a table of counts"),
        ("evaluation.json", cells(0, 1), "confusion.vote is not a table of counts"),
        ("data.json", '{"name": "digits"}', "does not describe a federation"),
        ("data.safetensors", b"12", "not safetensors"),
    ],
)
def test_broken_files_are_named_with_the_remedy(make_run: MakeRun, name: str, content: str | bytes, why: str) -> None:
    folder = make_run("first")
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(FeddrmError) as caught:
        RunRecord.read(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder.resolve() / name} is broken (")
    assert why in message
    assert message.endswith("restore the file or train the run again")
    assert "\n" not in message


def test_a_file_that_is_a_folder_is_named(make_run: MakeRun) -> None:
    folder = make_run("first")
    (folder / "summary.json").unlink()
    (folder / "summary.json").mkdir()
    with pytest.raises(FeddrmError, match=r"cannot read .*summary.json"):
        RunRecord.read(folder)


@pytest.mark.parametrize("clients", [3, 120])
def test_a_confusion_comes_back_whole_from_its_file(clients: int, tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    routes, origin = (torch.randint(clients, (400,), generator=g) for _ in range(2))
    counts = confusion(routes, origin, clients)
    written = json_bytes({"vote": confusion_as_plain(counts)})
    read = _read_confusion({"confusion": json.loads(written)}, tmp_path, "confusion", clients)["vote"]
    assert read.tolist() == counts.tolist()
    assert len(written) < 40 * 400, "a few bytes per sample, however many clients there are"
