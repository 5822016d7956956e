"""Tests of the basis functions: normal and gamma populations are exponential tilts, label shift is not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import gamma, norm

from feddrm.drm.basis import Floats, evaluate_basis


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.3, 3)), min_size=2, max_size=2))
def test_07_normal_populations(pair: list[tuple[float, float]]) -> None:
    (m1, s1), (m2, s2) = pair
    x = np.linspace(-3, 3, 9)
    theta = (np.log(s2 / s1) - (m1**2 / s1**2 - m2**2 / s2**2) / 2, m1 / s1**2 - m2 / s2**2, (s2**-2 - s1**-2) / 2)
    by_formula = theta[0] + evaluate_basis("normal", x) @ np.array(theta[1:])
    np.testing.assert_allclose(by_formula, norm.logpdf(x, m1, s1) - norm.logpdf(x, m2, s2), rtol=1e-10, atol=1e-10)


@given(st.lists(st.tuples(st.floats(0.3, 5), st.floats(0.3, 5)), min_size=2, max_size=2))
def test_07_gamma_populations(pair: list[tuple[float, float]]) -> None:
    (a1, b1), (a2, b2) = pair
    x = np.linspace(0.1, 5, 9)
    theta = (gammaln(a2) - gammaln(a1) + a1 * np.log(b1) - a2 * np.log(b2), b2 - b1, a1 - a2)
    by_formula = theta[0] + evaluate_basis("gamma", x) @ np.array(theta[1:])
    direct = gamma.logpdf(x, a1, scale=1 / b1) - gamma.logpdf(x, a2, scale=1 / b2)
    np.testing.assert_allclose(by_formula, direct, rtol=1e-10, atol=1e-10)


def residual_of_tilt(log_ratio: Floats, h: Floats) -> float:
    design = np.column_stack([np.ones(len(h)), h])
    return float(np.abs(log_ratio - design @ np.linalg.lstsq(design, log_ratio, rcond=None)[0]).max())


def test_erratum_label_shift_is_not_an_exponential_tilt() -> None:
    """With shared class densities and other class shares the marginal ratio is one of mixtures, not linear in h."""
    x = np.linspace(-3, 3, 61)
    classes = norm.pdf(x[:, None], [-1.5, 0.0, 1.5], 0.7)
    ratio = np.log(classes @ [0.7, 0.1, 0.2]) - np.log(classes @ [0.2, 0.4, 0.4])
    assert residual_of_tilt(ratio, evaluate_basis("normal", x)) > 0.1
    tilted = norm.logpdf(x, 0.5, 1.2) - norm.logpdf(x, 0, 1)  # the check itself can succeed
    assert residual_of_tilt(tilted, evaluate_basis("normal", x)) < 1e-10
