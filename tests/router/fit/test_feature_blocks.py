"""Features and ridge are chosen by held-out squared errors that follow from moments alone."""

from __future__ import annotations

import operator
from functools import reduce

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from feddrm.moments import Moments
from feddrm.router import Recipe
from feddrm.router.fit.cohort import FitRequest
from feddrm.router.fit.feature_blocks import BlockChooser, MemberMoments, site_moments
from feddrm.router.solver.client_statistics import Sample, client_gradient, client_scores
from feddrm.router.solver.problem import Problem, add

RAW, COLOUR, BOTH = (Recipe.parse(name) for name in ("raw", "colour", "raw+colour"))
WIDTHS = {"raw": 3, "colour": 4}
CLIENTS, CLASSES, FOLDS = 2, 3, 3


def samples(signal_in: str, n: int = 240):
    """Seven features; the classes show in those of one name, the clients in the others."""
    rng = np.random.default_rng(0)
    y, owner, part = rng.integers(0, CLASSES, n), rng.integers(0, CLIENTS, n), np.arange(n) % FOLDS
    x = rng.normal(size=(n, 7)) * np.array([1, 10, 0.1, 1, 1, 5, 1])
    place = {"raw": 0, "colour": 3}[signal_in]
    x[:, place] += 2 * y
    x[:, 3 - place] += 3 * owner
    return x, y, owner, part


def pooled(x, y, owner, part):
    def moments(rows, client):
        rows = rows & (owner == client)
        return Moments.of(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), client, CLIENTS, CLASSES)

    return [moments(part == fold, 0) + moments(part == fold, 1) for fold in range(FOLDS)]


@pytest.mark.parametrize("signal", ["raw", "colour"])
def test_each_target_gets_the_block_that_tells_it_apart(signal):
    chooser = BlockChooser(pooled(*samples(signal)), FOLDS, WIDTHS, None)
    tried, best = chooser.choose([RAW, COLOUR])
    other = {"raw": "colour", "colour": "raw"}[signal]
    assert best["class"].recipe.name == signal
    assert best["client"].recipe.name == other
    assert set(tried["class"]) == {"raw", "colour"}


def test_the_error_of_a_block_is_that_of_pooled_samples():
    x, y, owner, part = samples("raw")
    chooser = BlockChooser(pooled(x, y, owner, part), FOLDS, WIDTHS, 0.1)
    block = chooser.try_ridges(COLOUR, ())["class"]
    scaled = (x - x.mean(0))[:, 3:] / x.std(0)[3:]
    error = 0.0
    for fold in range(FOLDS):
        inside = part == fold
        oracle = Ridge(alpha=0.1 * (~inside).sum()).fit(scaled[~inside], np.eye(CLASSES)[y[~inside]])
        error += ((np.eye(CLASSES)[y[inside]] - oracle.predict(scaled[inside])) ** 2).sum()
    assert block.choice.ridge == 0.1
    assert block.choice.loss == pytest.approx(error / len(x), rel=1e-10)


def test_features_that_want_less_of_a_ridge_are_scaled_down_less():
    chooser = BlockChooser(pooled(*samples("raw")), FOLDS, WIDTHS, None)
    block = chooser.try_ridges(BOTH, (1.0,), alone={"raw": 1e-2, "colour": 1.0})["class"]
    factors = block.scaler.scale / chooser.total.scale
    torch.testing.assert_close(factors, torch.tensor([0.1] * 3 + [1.0] * 4, dtype=torch.float64))


def test_the_best_ridge_is_refined():
    chooser = BlockChooser(pooled(*samples("raw")), FOLDS, WIDTHS, None)
    tried, best = chooser.choose([RAW])
    coarse = tried["class"]["raw"].choice
    assert [ridge for ridge, _ in best["class"].choice.path][:2] == [3 * coarse.ridge, coarse.ridge]
    assert best["class"].choice.loss <= coarse.loss


def test_a_given_ridge_is_kept():
    chooser = BlockChooser(pooled(*samples("raw")), FOLDS, WIDTHS, 0.25)
    _, best = chooser.choose([RAW, COLOUR, BOTH])
    assert {block.choice.ridge for block in best.values()} == {0.25}


def test_the_rest_is_never_held_out():
    parts = pooled(*samples("raw"))
    chooser = BlockChooser(parts, 1, WIDTHS, None)
    ((fitted, held_out),) = chooser.folds
    assert held_out is parts[0]
    assert fitted.count == parts[1].count + parts[2].count


@pytest.mark.parametrize("fold", [0, 2, None])
def test_what_clients_answer_at_zero_follows_from_their_moments(fold):
    x, _, owner, part = samples("raw")
    rows, blank = torch.from_numpy(x), torch.zeros(len(x), dtype=torch.int64)
    of = [[torch.from_numpy((owner == client) & (part == p)) for p in range(FOLDS)] for client in range(CLIENTS)]
    members = MemberMoments([site_moments(rows, masks) for masks in of], WIDTHS)
    assert all(part.shape == (1, 1, 7) for parts in members.clients for part in parts)  # its own place alone
    each = [[Moments.of(rows[m], blank[m], i, CLIENTS, 1) for m in masks] for i, masks in enumerate(of)]
    total = reduce(operator.add, (part for parts in each for part in parts))
    for name in ("counts", "client_sums", "class_sums", "scatter"):
        torch.testing.assert_close(getattr(members.total, name), getattr(total, name), msg=name)
    design = members.design(Recipe.parse("colour+raw"), {"raw": 0.1, "colour": 0.01})
    problem, zero = Problem(CLIENTS, 7, 0.1), torch.zeros(CLIENTS, 8, dtype=torch.float64)
    answers, scores = members.at_zero(FitRequest(design, "client", problem, fold))
    scaled = design.scaler(rows[:, [3, 4, 5, 6, 0, 1, 2]])
    assert float(scaled[:, :4].square().mean() / scaled[:, 4:].square().mean()) == pytest.approx(10.0, rel=1e-6)
    held = []
    for client, masks in enumerate(of):
        inside = masks[fold] if fold is not None else torch.zeros(len(x), dtype=torch.bool)
        outside = torch.stack(masks).any(0) & ~inside
        expected = client_gradient(Sample(scaled[outside], torch.full((int(outside.sum()),), client)), zero)
        for name, value in expected.items():
            torch.testing.assert_close(answers[client][name], value, rtol=1e-10, atol=1e-9)
        held.append(client_scores(Sample(scaled[inside], torch.full((int(inside.sum()),), client)), zero))
    torch.testing.assert_close(scores, add(held), rtol=1e-10, atol=1e-9)
