"""Heads in closed form equal scikit-learn's on the pooled samples."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from feddrm.errors import FeddrmError
from feddrm.moments import (
    Moments,
    choose_ridges,
    discriminant_head,
    ridge_correction,
    ridge_head,
    ridge_heads,
    squared_loss,
)

CLASSES = 3


def cloud(n: int, d: int, seed: int, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(CLASSES), rng.integers(0, CLASSES, n - CLASSES)])
    return offset + rng.normal(size=(n, d)) + rng.normal(size=(CLASSES, d))[y], y


def moments_of(x: np.ndarray, y: np.ndarray, owners: np.ndarray, clients: int) -> Moments:
    parts = [
        Moments.of(torch.from_numpy(x[owners == i]), torch.from_numpy(y[owners == i]), i, clients, CLASSES)
        for i in range(clients)
    ]
    return reduce(add, parts)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(12, 80), d=st.integers(1, 8), clients=st.integers(2, 6), seed=st.integers(0, 9999),
    ridge=st.sampled_from([1.0, 1e-2, 1e-4]), offset=st.sampled_from([0.0, 30.0]),
)  # fmt: skip
def test_one_message_equals_pooled_ridge_regression_whatever_the_division(n, d, clients, seed, ridge, offset):
    x, y = cloud(n, d, seed, offset)
    owners = np.random.default_rng(seed).integers(0, clients, n)
    heads = ridge_heads(moments_of(x, y, owners, clients), ridge)
    for target, labels, outputs in (("class", y, CLASSES), ("client", owners, clients)):
        oracle = Ridge(alpha=ridge * n, solver="cholesky").fit(x, np.eye(outputs)[labels])
        expected = np.column_stack([oracle.coef_, oracle.intercept_])
        np.testing.assert_allclose(heads[target].numpy(), expected, rtol=1e-10, atol=1e-10)


def test_discriminants_equal_those_of_pooled_samples():
    x, y = cloud(200, 5, 3)
    owners = np.arange(200) % 4
    moments = moments_of(x, y, owners, 4)
    for target, labels in (("class", y), ("client", owners)):
        oracle = LinearDiscriminantAnalysis(solver="lsqr").fit(x, labels)
        expected = np.column_stack([oracle.coef_, oracle.intercept_])
        np.testing.assert_allclose(discriminant_head(moments, target, 0.0).numpy(), expected, rtol=1e-8, atol=1e-10)


def test_a_client_without_samples_is_unlikely_and_not_impossible():
    x, y = cloud(60, 3, 0)
    head = discriminant_head(moments_of(x, y, np.zeros(60, dtype=int), 2), "client", 0.1)
    assert bool(head.isfinite().all())
    scores = torch.from_numpy(x) @ head[:, :-1].T + head[:, -1]
    assert bool((scores[:, 0] > scores[:, 1]).all())


def test_squared_errors_follow_from_the_sums():
    x, y = cloud(70, 4, 1)
    owners = np.arange(70) % 3
    moments = moments_of(x, y, owners, 3)
    heads = ridge_heads(moments, 0.1)
    for target, labels in (("class", y), ("client", owners)):
        head = heads[target].numpy()
        errors = np.eye(3)[labels] - (x @ head[:, :-1].T + head[:, -1])
        assert squared_loss(heads[target], moments, target) == pytest.approx((errors**2).sum(), rel=1e-10)


def test_the_chosen_ridge_has_the_least_error_on_held_out_samples():
    x, y = cloud(60, 20, 5)
    owners = np.arange(60) % 2
    parts = np.arange(60) % 3
    held = [moments_of(x[parts == f], y[parts == f], owners[parts == f], 2) for f in range(3)]
    folds = [(held[1] + held[2], held[0]), (held[0] + held[2], held[1]), (held[0] + held[1], held[2])]
    ridges = (10.0, 1.0, 0.1, 1e-3)
    chosen = choose_ridges(folds, ridges)
    errors = {}
    for ridge in ridges:
        total = 0.0
        for fold in range(3):
            oracle = Ridge(alpha=ridge * 40, solver="cholesky").fit(x[parts != fold], np.eye(3)[y[parts != fold]])
            total += ((np.eye(3)[y[parts == fold]] - oracle.predict(x[parts == fold])) ** 2).sum()
        errors[ridge] = total / 60
    best = min(errors, key=errors.__getitem__)
    assert best not in (ridges[0], ridges[-1])
    assert chosen["class"].ridge == best
    assert dict(chosen["class"].path) == pytest.approx({r: errors[r] for r, _ in chosen["class"].path})


def test_a_ridge_that_was_solved_before_is_not_solved_again():
    x, y = cloud(60, 8, 5)
    owners = np.arange(60) % 2
    first, second = (moments_of(x[i::2], y[i::2], owners[i::2], 2) for i in range(2))
    folds, solved = [(first, second), (second, first)], {}
    choose_ridges(folds, (1.0, 0.1), solved)
    assert list(solved) == [1.0, 0.1]
    nothing = {target: torch.zeros_like(head) for target, head in solved[0.1][0].items()}
    solved[0.1] = [nothing, nothing]
    path = dict(choose_ridges(folds, (0.3, 0.1), solved)["class"].path)
    assert path[0.1] == 1.0, "the squared error of heads that are zero"
    torch.testing.assert_close(solved[0.3][0]["class"], ridge_heads(first, 0.3)["class"])


def test_a_correction_is_the_ridge_regression_of_what_the_head_leaves():
    x, y = cloud(50, 4, 8, offset=2.0)
    own = moments_of(x, y, np.zeros(50, dtype=int), 1)
    head = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left = np.eye(CLASSES)[y] - (x @ head[:, :-1].numpy().T + head[:, -1].numpy())
    oracle = Ridge(alpha=0.3 * 50, solver="cholesky").fit(x, left)
    expected = np.column_stack([oracle.coef_, oracle.intercept_])
    np.testing.assert_allclose(ridge_correction(own, head, 0.3).numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("solve", [ridge_head, discriminant_head])
def test_a_singular_gram_matrix_needs_a_ridge(solve):
    x, y = cloud(40, 3, 2)
    twice = moments_of(np.column_stack([x, x[:, 0]]), y, np.arange(40) % 2, 2)
    with pytest.raises(FeddrmError, match=r"4 features is singular with ridge=0 .*--ridge 0\.01"):
        solve(twice, "class", 0.0)
    assert bool(solve(twice, "class", 0.01).isfinite().all())


def test_fewer_samples_than_features_need_a_ridge():
    x, y = cloud(6, 9, 2)
    with pytest.raises(FeddrmError, match="singular"):
        ridge_heads(moments_of(x, y, np.arange(6) % 2, 2), 0.0)
