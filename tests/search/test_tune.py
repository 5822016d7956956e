"""The search on small data: what it finds, what it writes, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import feddrm
from feddrm.data import Federation
from feddrm.data.client import Split
from feddrm.methods import FedDRM
from feddrm.search import trial as trials
from feddrm.search.tune import tune
from refusal import refused

AXES = {"lr": [1e-4, 0.1, 30.0]}
SMALL: dict[str, Any] = {"rounds": 16, "local_steps": 4, "seed": 0, "axes": AXES, "cost": 2.0}


@pytest.fixture(scope="module")
def digits() -> Federation:
    return feddrm.load("digits", clients=3, seed=3)


def files(folder: Path) -> dict[str, bytes]:
    names = ("trials.json", "best.yaml", "tune.html", "tune.yaml")
    return {name: (folder / name).read_bytes() for name in names}


def config(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()))


@pytest.fixture(scope="module")
def found(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> feddrm.search.TuneResult:
    return tune(digits, "feddrm", out=tmp_path_factory.mktemp("tune") / "whole", **SMALL)


def test_the_rate_that_learns_is_found(found):
    assert dict(found.best["feddrm"].values) == {"lr": 0.1}
    assert found.scores["feddrm"]["average"] > 0.5
    assert found.finished


def test_every_trial_is_recorded_and_only_two_reach_the_end(found):
    record = json.loads((found.path / "trials.json").read_text())["methods"]["feddrm"]
    assert set(record) == {"lr=0.0001", "lr=0.1", "lr=30"}
    last = max(int(round) for trial in record.values() for round in trial["scores"])
    assert sum(str(last) in trial["scores"] for trial in record.values()) <= 2
    assert record["lr=30"]["end"] in ("diverged", "collapsed by round 3")
    page = (found.path / "tune.html").read_text()
    assert "Best by average accuracy: lr=0.1." in page
    assert "test samples were not read" in page


def test_the_best_settings_are_a_configuration_of_a_whole_run(found, tmp_path):
    best = config(found.path / "best.yaml")
    assert (best["lr"], best["rounds"], best["method"]["name"]) == (0.1, 16, "feddrm")


def test_test_samples_are_never_read(digits, found, tmp_path, monkeypatch):
    """With other test samples the search finds the same, to the last bit of every score."""
    clients = []
    for client in digits.clients:
        noise = torch.zeros_like(client.test.x)
        clients.append(feddrm.data.Client(client.name, client.train, Split(noise, client.test.y), client.view))
    other = tune(
        Federation("digits", tuple(clients), digits.classes, digits.source, settings=digits.settings),
        "feddrm", out=tmp_path / "other", **SMALL,
    )  # fmt: skip
    assert json.loads((other.path / "trials.json").read_text()) == json.loads((found.path / "trials.json").read_text())


@pytest.mark.slow
def test_a_search_that_is_stopped_anywhere_goes_on_and_finds_the_same(digits, found, tmp_path, monkeypatch):
    real, calls = trials.train, 0

    def stopped(*words: Any, on_round: Any, **settings: Any) -> Any:
        def listen(result: Any, metrics: Any, rounds: int) -> None:
            nonlocal calls
            calls += 1
            if calls % 4 == 0:
                raise KeyboardInterrupt
            on_round(result, metrics, rounds)

        return real(*words, on_round=listen, **settings)

    monkeypatch.setattr(trials, "train", stopped)
    for _ in range(100):
        try:
            result = tune(digits, "feddrm", out=tmp_path / "cut", **SMALL)
            break
        except KeyboardInterrupt:
            continue
    assert calls > 6  # it was stopped several times
    assert result == replace(found, path=tmp_path / "cut")
    assert files(tmp_path / "cut") == files(found.path)


@pytest.mark.slow
def test_the_goal_both_gives_a_front_measured_by_the_exact_router(digits, tmp_path):
    settings = {**SMALL, "rounds": 4, "axes": {"lr": [0.05, 0.1]}, "goal": "both"}
    result = tune(digits, ["feddrm", "fedavg"], out=tmp_path / "tune", **settings)
    assert set(result.best) == set(result.front) == {"feddrm", "fedavg"}
    record = json.loads((tmp_path / "tune" / "trials.json").read_text())
    for name, front in result.front.items():
        everyone = [trial["scores"]["4"] for trial in record["methods"][name].values()]
        for scores in front.values():
            assert set(scores) == {"average", "system"}
            assert not any(all(s[key] > scores[key] for key in scores) for s in everyone)
        averages = [scores["average"] for scores in front.values()]
        assert averages == sorted(averages, reverse=True)
        assert max(averages) == max(scores["average"] for scores in everyone)
        assert record["front"][name] == [candidate.name for candidate in front]
        assert record["best"][name] == result.best[name].name
        first, *_, last = [*front, *front]
        for end, candidate in (("average", first), ("system", last)):
            assert config(tmp_path / "tune" / f"best-{name}-{end}.yaml")["lr"] == candidate.plan["lr"]
        assert config(tmp_path / "tune" / f"best-{name}.yaml")["lr"] == result.best[name].plan["lr"]
        words = f"# {result.verdicts[name]}"
        assert (tmp_path / "tune" / f"best-{name}.yaml").read_text().splitlines()[0] == words
        assert "by the mean of average and system accuracy" in words


def test_small_samples_allow_trials_of_a_whole_run(digits, tmp_path):
    result = tune(digits, "feddrm", out=tmp_path, axes={"lr": [0.05, 0.1]}, rounds=4, local_steps=1, seed=0)
    record = json.loads((tmp_path / "trials.json").read_text())["methods"]["feddrm"]
    assert [max(map(int, trial["scores"])) for trial in record.values()] == [4, 4]
    assert result.front == {"feddrm": {}}


def test_settings_of_evaluation_hold_for_trials_and_for_the_best_run(digits, tmp_path):
    given = {"ties": "cuda", "window": 3}
    tune(digits, "fedavg", out=tmp_path, axes={"lr": [0.1]}, rounds=4, local_steps=1, evaluation=given)
    trial, best = (config(tmp_path / file)["evaluation"] for file in ("trials/fedavg/lr=0.1/config.yaml", "best.yaml"))
    assert (trial["ties"], best["ties"], best["window"]) == ("cuda", "cuda", 3)


@pytest.mark.slow
def test_the_budget_stops_a_search_that_goes_on_later(digits, found, tmp_path, monkeypatch):
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr("time.monotonic", clock)
    with refused("the budget was used up before the first trial reached its first comparison"):
        tune(digits, "feddrm", out=tmp_path / "tune", budget=2.0, **SMALL)
    result = tune(digits, "feddrm", out=tmp_path / "tune", budget=40.0, **SMALL)
    assert not result.finished
    assert tune(digits, "feddrm", out=tmp_path / "tune", **SMALL).best == found.best


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"data_settings": {"clients": 4}}, ["data_settings are for data given by name"]),
        ({"goal": "speed"}, ["unknown goal 'speed'", "average, system, both"]),
        ({"cost": 0.0}, ["cost=0.0"]),
        ({"budget": -5}, ["budget=-5", "give the seconds that the search may take"]),
        ({"held_out": 1.0}, ["held_out=1.0"]),
        ({"axes": {"lr": []}}, ["nothing to try"]),
        ({"axes": {"method.mu": [1.0]}}, ["'feddrm' has no setting 'mu'"]),
        ({"axes": {"lr": [-1.0]}}, ["lr=-1.0"]),
        ({"axes": {"lr": [i / 100 for i in range(1, 60)]}}, ["59 candidates need more than 32 rounds"]),
    ],
)
def test_impossible_searches_are_refused_and_write_nothing(digits, tmp_path, changed, parts):
    with refused(*parts):
        tune(digits, "feddrm", out=tmp_path / "tune", **{**SMALL, **changed})
    with refused("methods=[]: name at least one method"):
        tune(digits, [], out=tmp_path / "tune", **SMALL)
    assert not (tmp_path / "tune").exists()


def test_a_method_is_searched_once(digits, tmp_path):
    """Two searches of one name would share trials and files: the second took the first one's figures."""
    with refused("method 'feddrm' is given twice"):
        tune(digits, [FedDRM(lam=0.5), FedDRM(lam=0.9)], out=tmp_path / "tune", **SMALL)
    assert not (tmp_path / "tune").exists()


def test_a_folder_with_another_search_is_refused_and_kept(digits, found):
    before = files(found.path)
    with refused("holds a search with other settings (held_out)", "choose another --out"):
        tune(digits, "feddrm", out=found.path, held_out=0.3, **SMALL)
    assert files(found.path) == before


def test_a_folder_with_something_else_is_refused(digits, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with refused("is not empty and no search"):
        tune(digits, "feddrm", out=tmp_path, **SMALL)


def test_a_folder_that_cannot_be_made_is_refused(digits, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for out, says in (("thesis.txt", "is a file"), ("thesis.txt/tune", "cannot create")):
        with refused(says, "choose another --out"):
            tune(digits, "feddrm", out=tmp_path / out, **SMALL)


@pytest.mark.parametrize("record", ["{}", '{"methods": {"feddrm": {}}}', '{"methods": {"feddrm": {"lr=0.0001": 1}}}'])
def test_a_broken_record_of_trials_is_one_line(digits, found, tmp_path, record):
    shutil.copytree(found.path, tmp_path / "tune")
    (tmp_path / "tune" / "trials.json").write_text(record)
    with refused("trials.json is broken (no scores of the trial feddrm, lr=0.0001)", "remove it to search again"):
        tune(digits, "feddrm", out=tmp_path / "tune", **SMALL)


def test_if_every_trial_fails_it_is_said(digits, tmp_path):
    with refused("every trial", "try smaller learning rates"):
        tune(digits, "feddrm", out=tmp_path / "tune", **{**SMALL, "axes": {"lr": [1e30]}})
