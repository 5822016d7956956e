"""Held-out samples: a part of every client's training samples; test samples are not touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from feddrm.data import Federation
from feddrm.data.client import Split
from feddrm.search.holdout import hold_out
from refusal import refused


@pytest.fixture
def federation() -> Federation:
    rows = {name: (torch.arange(n * 2.0).view(n, 2) + start, [0, 1] * (n // 2)) for name, n, start in
            (("oslo", 20, 0), ("lima", 30, 1000))}  # fmt: skip
    return Federation.from_arrays(rows)


def values(split: Split) -> set[float]:
    return set(split.x[:, 0].tolist())


def test_training_samples_are_divided_and_test_samples_are_gone(federation):
    held = hold_out(federation, 0.25, seed=1)
    for before, after in zip(federation.clients, held.clients, strict=True):
        assert values(after.train) | values(after.test) == values(before.train)
        assert not values(after.train) & values(after.test)
        assert not values(before.test) & (values(after.train) | values(after.test))
        assert len(after.train) == int(0.75 * len(before.train))
    assert held.settings["held_out"] == 0.25
    assert hold_out(federation, 0.25, seed=1).digest() == held.digest() != hold_out(federation, 0.25, seed=2).digest()


def test_subjects_are_held_out_whole():
    patients = torch.arange(20) // 4
    arrays = {
        name: (torch.arange(40.0).view(20, 2) + start, [0, 1] * 10, patients) for name, start in (("a", 0), ("b", 9))
    }
    whole = Federation.from_arrays(arrays, test_fraction=0.2)
    for client in hold_out(whole, 0.3, seed=1).clients:
        assert not set(client.train.subject.tolist()) & set(client.test.subject.tolist())
        assert (client.train.subjects, client.test.subjects) == (3, 1)
    first = whole.clients[0]
    one = replace(first, train=first.train.at((first.train.subject == first.train.subject[0]).numpy().nonzero()[0]))
    with refused("client 'a' has 4 training samples of 1 subjects", "change held_out"):
        hold_out(replace(whole, clients=(one, *whole.clients[1:])), 0.3, seed=1)


def test_too_few_samples_are_refused(federation):
    first = federation.clients[0]
    short = replace(first, train=Split(first.train.x[:1], first.train.y[:1]))
    with refused("client 'oslo' has 1 training samples", "change held_out"):
        hold_out(replace(federation, clients=(short, *federation.clients[1:])), 0.2, seed=1)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fractions_of_nothing_and_everything_are_refused(federation, fraction):
    with refused("give a fraction between 0 and 1"):
        hold_out(federation, fraction, seed=1)
