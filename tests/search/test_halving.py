"""Successive halving: rungs, their cost, and their limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.errors import SettingError
from feddrm.search.halving import Halving, Rung, plan_halving


def test_the_search_of_a_paper_run_costs_no_more_than_one_run():
    halving = plan_halving(6, 800, 800)
    assert [rung.trials for rung in halving.rungs] == [6, 3, 2]
    assert 700 < halving.cost <= 800
    assert halving.rungs[-1].round == halving.rounds


def test_the_cost_counts_rounds_that_a_trial_has_trained_before_once():
    assert Halving((Rung(2, 4), Rung(6, 2)), 6, 1).cost == 4 * 2 + 2 * 4


def test_starts_are_counted_as_rounds_but_leave_half_of_the_time():
    """On a GPU: five trials as in the tuned table, and the usual search."""
    every = plan_halving(5, 800, 800, 5, start=25)
    assert (every.starts, every.rounds, every.cost) == (5, 128, 640)
    usual = plan_halving(6, 800, 800, start=25)
    assert usual.starts == 6 + 3 + 2
    assert usual.cost + 25 * usual.starts <= 800
    assert plan_halving(6, 160, 40, start=25) == plan_halving(6, 80, 40)


def test_a_front_has_three_finalists():
    assert [rung.trials for rung in plan_halving(7, 400, 40, finalists=3).rungs] == [7, 4, 3]


def test_trials_are_never_longer_than_a_run():
    assert plan_halving(2, 10_000, 40).rounds == 40


@given(st.integers(1, 20), st.integers(30, 1200), st.integers(20, 1200))
def test_rungs_rise_and_are_evaluated_rounds(candidates, rounds, longest):
    try:
        halving = plan_halving(candidates, rounds, longest)
    except SettingError:
        assert candidates > 4  # few candidates fit into 30 rounds
        return
    places = [rung.round for rung in halving.rungs]
    assert places == sorted(set(places))
    assert all(place % halving.every == 0 for place in places)
    assert places[-1] == halving.rounds <= longest
    assert halving.cost <= rounds
    assert halving.rungs[0].trials == candidates
    assert halving.rungs[-1].trials <= 2


def test_too_many_candidates_are_refused():
    with pytest.raises(SettingError, match="64 candidates need more than 40 rounds: try fewer values"):
        plan_halving(64, 40, 40)
