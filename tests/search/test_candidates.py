"""The search space: combinations, names, types, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.engine import Plan
from feddrm.methods import FedAvg, FedDRM, FedProxFT
from feddrm.search.candidates import Candidate, all_candidates
from refusal import refused


def test_without_axes_rates_around_the_usual_one_are_tried():
    rates = [candidate.plan["lr"] for candidate in all_candidates({}, FedDRM(), Plan(lr=0.05))]
    assert rates == [0.005, 0.015, 0.05, 0.15, 0.5, 1.5]


def test_every_combination_is_tried_once_with_the_types_of_the_settings():
    axes = {"lr": ["0.1", "1e-1", "1"], "method.lam": ["0.5", "0.8"], "local_steps": ["5"]}
    found = all_candidates(axes, FedDRM(), Plan())
    assert [candidate.name for candidate in found] == [
        "lr=0.1,lam=0.5,local_steps=5",
        "lr=0.1,lam=0.8,local_steps=5",
        "lr=1,lam=0.5,local_steps=5",
        "lr=1,lam=0.8,local_steps=5",
    ]
    assert found[1].plan == {"lr": 0.1, "local_steps": 5}
    assert found[1].method(FedDRM(lam=0.1)) == FedDRM(lam=0.8)


def test_values_that_differ_in_late_digits_have_names_of_their_own():
    """A trial's folder has the candidate's name: equal ones would share one training."""
    found = all_candidates({"lr": np.array([0.1, 0.1000000001])}, FedDRM(), Plan())
    assert [candidate.name for candidate in found] == ["lr=0.1", "lr=0.1000000001"]


def test_a_candidate_keeps_the_methods_other_settings():
    candidate = Candidate((("method.mu", 0.5),))
    assert candidate.method(FedProxFT(tuning=3)) == FedProxFT(tuning=3, mu=0.5)
    assert Candidate((("lr", 0.5),)).method(base := FedProxFT(tuning=3)) is base


@pytest.mark.parametrize(
    ("axes", "parts"),
    [
        ({"lr": 0.1}, ["lr: there is nothing to try"]),
        ({"lr": []}, ["lr: there is nothing to try", "lr=0.01,0.1"]),
        ({"learning": [1]}, ["no setting 'learning' can be searched"]),
        ({"rounds": [1]}, ["no setting 'rounds' can be searched"]),
        ({"lr": ["fast"]}, ["lr='fast'"]),
        ({"method.lam": [0.5]}, ["'fedavg' has no setting 'lam'"]),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(axes, parts):
    with refused(*parts):
        all_candidates(axes, FedAvg(), Plan())
