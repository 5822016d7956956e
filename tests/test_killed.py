"""The process ends at any file operation: a folder opens as the old or the new state, and the same command goes on."""

from __future__ import annotations

import copy
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feddrm.data import Federation, load
from feddrm.errors import FeddrmError
from feddrm.models import Mlp
from feddrm.predictor.predictor import Predictor
from feddrm.report import report_page
from feddrm.report.report_page import write_report
from feddrm.report.run_record import RunRecord
from feddrm.report.run_table import report_table
from feddrm.runs import Run, run_router, train, training_session
from kill_points import contents, count_operations, kill, points
from runs.conftest import crowd

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "rounds": 3, "local_steps": 2, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(16,), branch=8),
}  # fmt: skip
TIMED = ("summary.json", "checkpoint/seconds.json")  # they hold seconds


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=3, seed=3)


@pytest.fixture(autouse=True)
def _every_round_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_session, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training_session, "CHECKPOINT_SHARE", 1e9)


def said(read: Callable[[], Any]) -> Any:
    """What a reader returns, or its refusal in words."""
    try:
        return read()
    except FeddrmError as error:
        return str(error)


# Training


@pytest.mark.parametrize("taken_over", [False, True], ids=["new", "taken over"])
def test_a_training_ends_as_an_undisturbed_one(taken_over: bool, digits: Federation, tmp_path: Path) -> None:
    whole = train(digits, "feddrm", out=tmp_path / "whole", **SETTINGS)
    expected, metrics = contents(whole.path), whole.metrics()
    start = tmp_path / "start"  # what a start with other data has left before its first round
    if taken_over:
        other = load("digits", clients=2, seed=1)
        beginning = contents(train(other, "fedavg", out=tmp_path / "other", **SETTINGS).path)
        for name in ("config.yaml", "data.json", "data.safetensors", "checkpoint/lock"):
            (start / name).parent.mkdir(parents=True, exist_ok=True)
            (start / name).write_bytes(beginning[name])

    def begin(out: Path) -> Path:
        return Path(shutil.copytree(start, out)) if taken_over else out

    first = begin(tmp_path / "first")
    total = count_operations(lambda: train(digits, "feddrm", out=first, **SETTINGS))
    for point in points(total):
        out = begin(tmp_path / f"run-{point}")
        kill(lambda out=out: train(digits, "feddrm", out=out, **SETTINGS), point)
        if (out / "config.yaml").exists():
            now = Run.open(out)
            assert now.metrics() == metrics[: len(now.metrics())]
            if (out / "data.json").exists() and not taken_over:
                assert (out / "data.json").read_bytes() == expected["data.json"]
            if taken_over and (out / "data.json").exists():
                clients = len(json.loads((out / "data.json").read_text())["clients"])
                assert clients == now.config["data"]["clients"], "the data of another start"
            assert now.summary is None or contents(out).keys() == expected.keys()
        train(digits, "feddrm", out=out, **SETTINGS)
        again = contents(out)
        assert again.keys() == expected.keys(), f"after file operation {point}"
        assert {name for name in expected if again[name] != expected[name]} <= set(TIMED), f"file operation {point}"
        shutil.rmtree(out)


def test_a_training_of_many_clients_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Private slots lie in shards, which rounds write and checkpoints delete."""
    federation, settings = crowd(), {**SETTINGS, "participation": 0.1}
    expected = contents(train(federation, "fedrep", out=tmp_path / "whole", **settings).path)
    assert sum(name.startswith("checkpoint/private/") for name in expected) == 3
    assert {name for name in expected if name.startswith("clients/")} == {
        "clients/private-0.safetensors", "clients/private-1.safetensors",
    }  # fmt: skip
    total = count_operations(lambda: train(federation, "fedrep", out=tmp_path / "first", **settings))
    for point in points(total):
        out = tmp_path / f"run-{point}"
        kill(lambda out=out: train(federation, "fedrep", out=out, **settings), point)
        train(federation, "fedrep", out=out, **settings)
        again = contents(out)
        assert again.keys() == expected.keys(), f"after file operation {point}"
        assert {name for name in expected if again[name] != expected[name]} <= set(TIMED), f"file operation {point}"


# The router


@pytest.fixture(scope="module")
def trained(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(digits, "feddrm", out=tmp_path_factory.mktemp("trained") / "run", **SETTINGS).path


@pytest.fixture(scope="module")
def _fits() -> Iterator[None]:
    """Every fit is computed once: only the writing is tried again and again."""
    fit, known = run_router._fit, dict[str, Any]()

    def once(folder: Any, config: Any, federation: Any, settings: Any, on_step: Any) -> Any:
        if str(settings) not in known:
            known[str(settings)] = fit(folder, config, federation, settings, on_step)
        fitted, figures = known[str(settings)]
        return fitted, copy.deepcopy(figures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_router, "_fit", once)
        yield


def head_of(folder: Path, name: str, answer: str) -> Any:
    predictor = Predictor.load(folder / "clients" / name, answer=answer)
    weights = predictor.head.weights.tolist() if answer == "refit" else []  # type: ignore[union-attr]
    return weights, predictor.head.calibration.temperature, predictor.router.input_mean, predictor.fit


def view(folder: Path, federation: Federation) -> dict[str, Any]:
    """What all readers say about a run, without the name of its folder."""
    run, record, names = Run.open(folder), RunRecord.read(folder), federation.names
    confusion = {rule: counts.tolist() for rule, counts in (record.confusion or {}).items()}
    seen = {
        "router": said(lambda: run.router().weight.tolist()),
        "heads": {(n, a): said(lambda n=n, a=a: head_of(folder, n, a)) for n in names for a in ("trained", "refit")},
        "summary": run.summary,
        "evaluation": said(lambda: run.evaluate(federation)),
        "report": (record.summary, record.reliability, record.answer_reliability, confusion),
    }
    return json.loads(json.dumps({key: str(value) for key, value in seen.items()}).replace(str(folder), "RUN"))


SHORT = {"rounds": 2, "path_rounds": 1}
RAW, OTHER, NO_HEADS = (
    {"features": "raw", "joint": False, **SHORT},
    {"features": "embedding", "joint": False, **SHORT},
    {"features": "embedding", "heads": False, **SHORT},
)


@pytest.mark.usefixtures("_fits")
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, RAW), (RAW, OTHER), (RAW, NO_HEADS)],
    ids=["first fit", "refit", "refit without heads"],
)
def test_a_fit_is_old_or_new_as_a_whole(
    before: dict[str, Any] | None, after: dict[str, Any], trained: Path, digits: Federation, tmp_path: Path
) -> None:
    old, new = Path(shutil.copytree(trained, tmp_path / "old")), tmp_path / "new"
    if before is not None:
        Run.open(old).fit_router(digits, **before)
    shutil.copytree(old, new)
    total = count_operations(lambda: Run.open(new).fit_router(digits, **after))
    states, expected = [view(folder, digits) for folder in (old, new)], contents(new)
    assert states[0] != states[1]
    seen = set()
    for point in points(total):
        folder = Path(shutil.copytree(old, tmp_path / f"run-{point}"))
        kill(lambda folder=folder: Run.open(folder).fit_router(digits, **after), point)
        now = view(folder, digits)
        assert now in states, f"a mixture after file operation {point}"
        seen.add(states.index(now))
        if point % 2:  # 'train' on the finished run settles it, too
            train(digits, "feddrm", out=folder, **SETTINGS)
            assert view(folder, digits) == now
            assert not [name for name in contents(folder) if name.endswith((".new", ".part"))]
        Run.open(folder).fit_router(digits, **after)
        assert contents(folder) == expected, f"after file operation {point}"
        shutil.rmtree(folder)
    assert seen == {0, 1}


@pytest.mark.usefixtures("_fits")
def test_another_fit_after_a_killed_one_leaves_nothing_of_it(trained: Path, digits: Federation, tmp_path: Path) -> None:
    old, new = Path(shutil.copytree(trained, tmp_path / "old")), tmp_path / "new"
    Run.open(old).fit_router(digits, **RAW)
    shutil.copytree(old, new)
    Run.open(new).fit_router(digits, **OTHER)
    expected = contents(new)
    for point in points(count_operations(lambda: Run.open(new).fit_router(digits, **NO_HEADS)))[::2]:
        folder = Path(shutil.copytree(old, tmp_path / f"run-{point}"))
        kill(lambda folder=folder: Run.open(folder).fit_router(digits, **NO_HEADS), point)
        Run.open(folder).fit_router(digits, **OTHER)
        assert contents(folder) == expected, f"after file operation {point}"


# The report


def test_every_file_of_a_report_is_old_or_new(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, expected = tmp_path / "out", {}
    tables = [report_table([trained]), report_table([trained, Path(shutil.copytree(trained, tmp_path / "again"))])]
    monkeypatch.setattr(report_page, "report_page", functools.cache(report_page.report_page))
    for table in tables:
        total = count_operations(lambda table=table: write_report(table, out))
        expected[table is tables[1]] = contents(out)
    old, new = expected[False], expected[True]
    assert all(old[name] != new[name] for name in new)
    before = contents(trained)
    for point in points(total):
        write_report(tables[0], out)
        kill(lambda: write_report(tables[1], out), point)
        assert all(content in (old[name], new[name]) for name, content in contents(out).items() if name in new)
        assert contents(trained) == before
        write_report(tables[1], out)
        assert contents(out) == new, f"after file operation {point}"
