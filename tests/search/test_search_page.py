"""The page of a search: before any trial, and with trials that ended early."""

from __future__ import annotations

from pathlib import Path

from feddrm.data import load
from feddrm.methods import FedAvg
from feddrm.runs import resolve
from feddrm.search.candidates import Candidate
from feddrm.search.halving import plan_halving
from feddrm.search.method_search import MethodSearch
from feddrm.search.search_page import search_page
from feddrm.search.trial import SearchTask, Trial


def search(tmp_path: Path, *rates: float, goal: str = "average") -> MethodSearch:
    federation, method = load("digits", clients=2, seed=0), FedAvg()
    halving = plan_halving(len(rates), 40, 40)
    task = SearchTask(federation, method, None, goal, halving.rounds, halving.every, {})
    trials = [Trial(Candidate((("lr", rate),)), tmp_path / str(rate)) for rate in rates]
    return MethodSearch(task, halving, trials, resolve(federation, method=method))


def test_a_page_can_be_written_before_anything_is_scored(tmp_path):
    page = search_page([search(tmp_path, 0.1, 0.2)])
    assert "No trial was scored yet." in page
    assert page.count("<svg") == 2


def test_the_page_names_the_best_trial_and_why_others_ended(tmp_path):
    found = search(tmp_path, 0.1, 0.2, 9.0)
    first = found.halving.rungs[0].round
    found.trials[0].scores[first] = {"average": 0.5}
    found.trials[1].scores[first] = {"average": 0.625}
    found.trials[2].end = "collapsed by round 2"
    page = search_page([found])
    assert "Best so far by average accuracy: lr=0.2." in page
    assert "62.50" in page
    assert "collapsed by round 2" in page


def test_the_page_marks_the_front(tmp_path):
    found = search(tmp_path, 0.1, 0.2, goal="both")
    for trial, average, system in zip(found.trials, (0.5, 0.625), (0.75, 0.5), strict=True):
        trial.scores[found.halving.rounds] = {"average": average, "system": system}
    page = search_page([found])
    assert page.count("on the front") == 2
    assert "by the mean of average and system accuracy: lr=0.1." in page
    found.trials[1].scores[found.halving.rounds]["system"] = 0.75
    assert search_page([found]).count("on the front") == 1
