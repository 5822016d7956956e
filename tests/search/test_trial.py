"""Trials: stopped at a round, scored there, ended where training fails; the best of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from feddrm.data import Federation, load
from feddrm.engine import load_state
from feddrm.errors import FeddrmError
from feddrm.methods import FedAvg
from feddrm.runs import RunFolder
from feddrm.search.candidates import Candidate
from feddrm.search.trial import SearchTask, Trial, goal_scores


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=3, seed=3)


def task(digits: Federation, **changed: Any) -> SearchTask:
    settings = {"local_steps": 2, "seed": 0, **changed.pop("settings", {})}
    return SearchTask(digits, FedAvg(), None, changed.pop("goal", "average"), 8, 1, settings)


def trial(folder: Path, **values: Any) -> Trial:
    return Trial(Candidate(tuple(values.items())), folder)


def test_a_trial_stops_at_its_round_and_goes_on_from_there(digits, tmp_path):
    steps, seen = trial(tmp_path / "steps", lr=0.1), []
    for until in (2, 5, 8):
        steps.advance(task(digits), until, seen.append)
        assert load_state(RunFolder(steps.folder).state_file).round == until
    assert seen == list(range(1, 9))
    at_once = trial(tmp_path / "once", lr=0.1)
    at_once.advance(task(digits), 8, seen.append)
    assert at_once.scores[8] == steps.scores[8]
    assert [round for round, _ in steps.curve()] == list(range(1, 9))
    for folder in (RunFolder(steps.folder), RunFolder(at_once.folder)):  # nothing is written that no comparison needs
        assert not folder.summary_file.exists()
        assert not folder.evaluation_file.exists()


def test_the_average_is_the_mean_of_the_last_evaluated_rounds(digits, tmp_path):
    one = trial(tmp_path / "one", lr=0.1)
    one.advance(task(digits), 5, lambda round: None)
    assert one.scores[5]["average"] == pytest.approx(sum(value for _, value in one.curve()[2:5]) / 3)


@pytest.mark.parametrize(("rate", "end"), [(1e30, "diverged"), (8.0, "collapsed by round 3")])
def test_a_trial_that_fails_ends_and_has_no_score(digits, tmp_path, caplog, rate, end):
    one = trial(tmp_path / "one", lr=rate)
    for until in (4, 8):
        one.advance(task(digits, settings={"local_steps": 5}), until, lambda round: None)
    assert (one.end, one.scores) == (end, {})
    assert one.value("average", 4) == -1.0
    assert not caplog.records


def test_other_errors_are_not_taken_for_divergence(digits, tmp_path):
    (tmp_path / "one").write_text("a file")
    with pytest.raises(FeddrmError, match="is a file"):
        trial(tmp_path / "one", lr=0.1).advance(task(digits), 4, lambda round: None)


def test_the_goal_both_is_the_mean_of_two_scores(tmp_path):
    one = trial(tmp_path / "one", lr=0.1)
    one.scores[3] = {"average": 0.5, "system": 0.25}
    assert (one.value("average", 3), one.value("system", 3), one.value("both", 3)) == (0.5, 0.25, 0.375)
    assert goal_scores("both") == ("average", "system")


def test_a_trial_beats_another_if_no_score_is_worse_and_one_is_better(tmp_path):
    one, other = trial(tmp_path / "one", lr=0.1), trial(tmp_path / "other", lr=0.2)
    assert one.last_scores == {}
    one.scores[3], other.scores[3] = {"average": 0.5, "system": 0.25}, {"average": 0.5, "system": 0.5}
    assert other.beats(one, "both", 3)
    assert not one.beats(other, "both", 3)
    assert not other.beats(one, "average", 3)
    other.scores[3]["average"] = 0.4
    assert not other.beats(one, "both", 3)
    other.scores[5] = {"average": 0.6, "system": 0.6}
    assert other.last_scores == {"average": 0.6, "system": 0.6}
