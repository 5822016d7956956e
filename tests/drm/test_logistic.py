"""Tests of the multinomial logistic solver: both ways to a Newton step, and the information matrix."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.drm import DensityRatioModel
from feddrm.drm.logistic import information
from populations import score, three


def test_conjugate_gradients_agree_with_the_factorised_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = DensityRatioModel().fit(three())
    monkeypatch.setattr("feddrm.drm.logistic.MOST_DENSE", 1)
    iterative = DensityRatioModel().fit(three())
    np.testing.assert_allclose(iterative.xi, dense.xi, atol=1e-10)
    assert score(iterative) < 1e-9


def test_the_information_is_the_second_derivative_whatever_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    z, p = rng.normal(size=(50, 3)), rng.dirichlet(np.ones(4), 50)
    penalty = np.diag([0.0, 1.0, 2.0])
    share = np.eye(4) - 1 / 4
    expected = sum(
        np.kron(np.diag(row) - np.outer(row, row), np.outer(x, x)) for row, x in zip(p[:, 1:], z, strict=True)
    ) + np.kron(share[1:, 1:], penalty)
    np.testing.assert_allclose(information(z, p, penalty), expected, atol=1e-12)
    monkeypatch.setattr("feddrm.drm.logistic.MOST_CELLS", 100)
    np.testing.assert_allclose(information(z, p, penalty), expected, atol=1e-12)
