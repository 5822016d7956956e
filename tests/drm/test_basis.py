"""Tests of the basis functions: populations of a family are exponential tilts, label shift is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import beta, gamma, lognorm, norm

from feddrm.drm.basis import BASES, Floats, evaluate_basis, terms


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


@pytest.mark.parametrize(
    ("basis", "one", "other"),
    [
        ("lognormal", lognorm(0.5, scale=1.3), lognorm(0.9, scale=0.8)),
        ("beta", beta(2, 3), beta(0.7, 5)),
        ("polynomial(2)", norm(0.4, 0.2), norm(0.5, 0.3)),
    ],
)
def test_families_are_exponential_tilts(basis: str, one: Any, other: Any) -> None:
    x = np.linspace(0.05, 0.95, 12)
    ratio = one.logpdf(x) - other.logpdf(x)
    assert residual_of_tilt(ratio, evaluate_basis(basis, x)) < 1e-10
    assert residual_of_tilt(ratio, evaluate_basis("identity", x)) > 0.01


def test_every_basis_names_its_functions() -> None:
    x = np.array([[0.25, 0.5]])
    for name in BASES:
        features = evaluate_basis(name, x)
        for term, value in zip(terms(name, ["u", "v"], 0), features[0], strict=True):
            python = term.replace("^", "**").replace("log u", "log(u)").replace("log v", "log(v)")
            assert value == pytest.approx(eval(python, {"log": np.log, "u": 0.25, "v": 0.5})), term


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
