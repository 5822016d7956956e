"""The trials of one method: who goes on, who is the best, and the front of two scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from feddrm.data import load
from feddrm.methods import FedDRM
from feddrm.runs import resolve
from feddrm.search.candidates import Candidate
from feddrm.search.halving import Halving, Rung
from feddrm.search.method_search import MethodSearch
from feddrm.search.trial import SearchTask, Trial

RATES = (0.01, 0.05, 0.1, 0.2)  # 0.05 is the usual one
FEDERATION = load("digits", clients=2, seed=0)
SAMPLES = sum(len(client.test) for client in FEDERATION.clients)


def search(goal: str = "average", *, last: int = 2, rates: tuple[float, ...] = RATES) -> MethodSearch:
    halving = Halving((Rung(2, len(rates)), Rung(8, last)), 8, 1)
    trials = [Trial(Candidate((("lr", rate),)), Path(f"{rate}")) for rate in rates]
    task = SearchTask(FEDERATION, FedDRM(), None, goal, 8, 1, {})
    return MethodSearch(task, halving, trials, resolve(FEDERATION, lr=0.05))


def score(found: MethodSearch, round: int, *averages: float, systems: tuple[float, ...] = ()) -> None:
    for number, (trial, average) in enumerate(zip(found.trials, averages, strict=False)):
        trial.scores[round] = {"average": average} | ({"system": systems[number]} if systems else {})


def rates(trials: list[Trial]) -> list[float]:
    return [trial.candidate.plan["lr"] for trial in trials]


def test_the_usual_settings_go_on_to_the_end() -> None:
    found = search()
    score(found, 2, 0.5, 0.25, 0.75, 0.625)
    assert rates(found.survivors(found.trials, 0)) == [0.05, 0.1]
    assert found.survivors(found.trials, 1) == []


def test_usual_settings_that_failed_do_not_go_on() -> None:
    found = search()
    score(found, 2, 0.5, 0.25, 0.75, 0.625)
    found.trials[1].scores.clear()
    assert rates(found.survivors(found.trials, 0)) == [0.1, 0.2]


def test_with_two_scores_the_least_beaten_go_on() -> None:
    found = search("both", last=3)
    score(found, 2, 0.9, 0.1, 0.8, 0.3, systems=(0.2, 0.1, 0.1, 0.5))
    assert rates(found.survivors(found.trials, 0)) == [0.05, 0.01, 0.2]  # 0.1 has a better mean than 0.2, but is beaten


@pytest.mark.parametrize(("more", "picked"), [(0.9, 0.05), (1.1, 0.1)])
def test_the_usual_settings_are_kept_within_one_standard_error(more: float, picked: float) -> None:
    found, error = search(), (0.5 * 0.5 / SAMPLES) ** 0.5
    for round in (2, 8):
        score(found, round, 0.2, 0.5 - more * error, 0.5, 0.4)
    best = found.best()
    assert best is not None
    assert best.candidate.plan["lr"] == picked
    assert ("Keep the usual settings, lr=0.05" in found.verdict()) == (picked == 0.05)
    if picked == 0.05:
        assert f"lr=0.1 is better by only {100 * more * error:.2f} points, at a standard error of" in found.verdict()


def test_a_standard_error_counts_subjects() -> None:
    found = search()
    pairs = tuple(
        replace(client, test=replace(client.test, subject=torch.arange(len(client.test)) // 2))
        for client in FEDERATION.clients
    )
    subjects = sum((len(client.test) + 1) // 2 for client in FEDERATION.clients)
    found = replace(found, task=replace(found.task, federation=replace(FEDERATION, clients=pairs)))
    for round in (2, 8):
        score(found, round, 0.2, 0.49, 0.5, 0.4)
    assert f"at a standard error of {100 * (0.5 * 0.5 / subjects) ** 0.5:.2f}." in found.verdict()


def test_without_the_usual_settings_the_best_score_counts() -> None:
    found = search(rates=(0.1, 0.2))
    assert found.usual is None
    assert found.best() is None
    assert found.verdict() == "No trial was scored yet."
    score(found, 8, 0.5, 0.501)
    assert found.best() is found.trials[1]


def test_the_highest_rung_counts() -> None:
    found = search(rates=(0.1, 0.2))
    score(found, 2, 0.9, 0.1)
    score(found, 8, 0.2, 0.3)
    assert found.best() is found.trials[1]


def test_the_best_is_so_far_until_the_last_comparison() -> None:
    found = search(rates=(0.1, 0.2, 0.3))
    score(found, 2, 0.5, 0.6)
    found.trials[2].end = "diverged"
    assert found.verdict() == "Best so far by average accuracy: lr=0.2."
    score(found, 8, 0.8)
    assert found.verdict() == "Best so far by average accuracy: lr=0.1."
    score(found, 8, 0.8, 0.9)
    assert found.finished
    assert found.verdict() == "Best by average accuracy: lr=0.2."


def test_the_usual_settings_may_be_a_method_s() -> None:
    found = search()
    trials = [Trial(Candidate((("method.lam", lam),)), Path(f"{lam}")) for lam in (0.1, FedDRM().lam)]
    assert MethodSearch(found.task, found.halving, trials, found.whole).usual is trials[1]


def test_the_front_is_what_no_other_beats_in_both() -> None:
    found = search("both")
    score(found, 8, 0.5, 0.7, 0.6, 0.6, systems=(0.9, 0.2, 0.8, 0.7))
    assert rates(found.front()) == [0.05, 0.1, 0.01]
    assert found.best() in (found.trials[0], found.trials[2])
    single = search()
    score(single, 8, 0.5, 0.7)
    assert single.front() == []
