"""Fed3R: pooled ridge regression, and a client's correction with the ridge that suits its own samples."""

from __future__ import annotations

import torch

from feddrm.methods import Fed3R
from feddrm.moments import (
    SQUARED_RIDGES,
    Moments,
    prior_corrections,
    ridge_correction,
    ridge_heads,
    squared_loss,
)

CLASSES = 2


def own_folds(n: int, own: float, seed: int = 0):
    """Two folds of a client whose classes depend on the first feature, with weight ``own`` on the second."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + own * x[:, 1] + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64) > 0).long()
    parts = [Moments.of(x[i::2], y[i::2], 0, 1, CLASSES) for i in range(2)]
    return [(parts[1], parts[0]), (parts[0], parts[1])], parts[0] + parts[1]


def change(folds, head, counts) -> torch.Tensor:
    """The client's ridge regression of what the head leaves."""
    return Fed3R().corrections(folds, [head, head], head, counts, 1.0)[0][0]


def test_classes_are_told_apart_by_ridge_regression():
    _, moments = own_folds(60, 0.0)
    assert torch.equal(Fed3R().head(moments, "class", 0.1), ridge_heads(moments, 0.1)["class"])


def test_a_client_like_the_others_keeps_the_head_nearly_and_another_changes_it():
    _, others = own_folds(4000, 0.0, seed=9)
    head = ridge_heads(others, 1e-3)["class"]
    counts = others.by("class")[0]
    size = {}
    for own in (0.0, 3.0):
        folds, _ = own_folds(400, own)
        size[own] = float(change(folds, head, counts).norm())
    assert size[3.0] > 5 * size[0.0]


def test_the_ridge_of_a_correction_has_the_least_error_on_the_clients_own_folds():
    folds, whole = own_folds(80, 3.0)
    _, others = own_folds(4000, 0.0, seed=9)
    head = ridge_heads(others, 1e-3)["class"]
    correction = change(folds, head, others.by("class")[0])

    def error(ridge: float) -> float:
        return sum(squared_loss(head + ridge_correction(fitted, head, ridge), held, "class") for fitted, held in folds)

    ridges = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
    torch.testing.assert_close(correction, ridge_correction(whole, head, min(ridges, key=error)))


def test_a_client_whose_samples_are_in_one_fold_gets_no_correction():
    x, y = torch.randn(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    some, none = Moments.of(x, y, 0, 1, CLASSES), Moments.of(x[:0], y[:0], 0, 1, CLASSES)
    head = torch.randn(CLASSES, 4, dtype=torch.float64)
    counts = torch.ones(CLASSES, dtype=torch.float64)
    assert not bool(change([(none, some), (some, none)], head, counts).any())


def test_every_change_comes_with_those_of_the_heads_without_each_fold():
    folds, whole = own_folds(80, 3.0)
    _, others = own_folds(4000, 0.0, seed=9)
    heads = [ridge_heads(others, ridge)["class"] for ridge in (1e-3, 1e-2, 1e-1)]
    counts = others.by("class")[0]
    own, priors = Fed3R().corrections(folds, heads[1:], heads[0], counts, 0.1)
    (ridge,) = (r for r in SQUARED_RIDGES if torch.equal(own[0], ridge_correction(whole, heads[0], r)))
    for changed, head, (fitted, _) in zip(own[1:], heads[1:], folds, strict=True):
        assert torch.equal(changed, ridge_correction(fitted, head, ridge))
    for prior, moments in zip(priors, (whole, *(fitted for fitted, _ in folds)), strict=True):
        torch.testing.assert_close(prior, 0.1 * prior_corrections([(moments, moments)], heads[0], counts)[1])
