"""Tests of the empirical likelihood: the paper's statements 2 to 6 in numbers; docs/theory.md explains each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import null_space
from scipy.special import log_softmax, softmax

from feddrm.drm import (
    profile_log_likelihood,
    reference_weights,
    solve_multipliers,
)
from feddrm.drm.basis import Floats
from feddrm.drm.likelihood import _pseudo_log
from populations import fitted, retilted
from refusal import refused


def test_02_weights_meet_both_constraints() -> None:
    """They sum to one under every tilt, and give every population its own sample's mean of the basis."""
    fit = fitted()
    e = np.exp(fit.gamma_dagger + fit.features @ fit.xi.T)
    p = 1 / (e @ fit.counts)
    assert p.sum() == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(p @ e, 1, atol=1e-10)
    np.testing.assert_allclose(p[:, None] * e, fit.weights, atol=1e-12)
    own = [fit.features[fit.owner == i].mean(0) for i in range(3)]
    np.testing.assert_allclose((p[:, None] * e).T @ fit.features, own, atol=1e-10)
    np.testing.assert_allclose(reference_weights(fit.log_tilts, fit.counts / fit.counts.sum()), p, atol=1e-14)


def test_03_multipliers_are_the_shares_of_the_samples() -> None:
    """The multipliers come from Owen's dual, which does not use n_l / N."""
    fit = fitted()
    shares = fit.counts / fit.counts.sum()
    for slope in (np.array([0.3, -0.2]), np.array([-0.5, 0.4])):
        np.testing.assert_allclose(solve_multipliers(retilted(fit, slope)), shares, atol=1e-8)
    # If a population is the reference, its multiplier is free: it is one minus the sum of the others.
    np.testing.assert_allclose(solve_multipliers(fit.log_tilts), shares, atol=1e-8)


def test_03_the_main_text_s_condition_lacks_one_plus() -> None:
    """Erratum: without ``1 +`` in the denominator, n_l / N is far from a solution."""
    fit = fitted()
    excess = np.expm1(retilted(fit, np.array([0.3, -0.2])))
    shares = fit.counts / fit.counts.sum()
    right = np.abs((excess / (1 + excess @ shares)[:, None]).sum(0)).max()
    printed = np.abs((excess / (excess @ shares)[:, None]).sum(0)).max()
    assert right < 1e-10
    assert printed > 10


def test_04_profile_likelihood_is_two_cross_entropies_and_a_constant() -> None:
    """The constant is ``-sum n_i log n_i``; the paper's lacks ``-N log N``."""
    fit = fitted()
    rng = np.random.default_rng(1)
    client_entropy = -fit.log_likelihood
    constant = -float((fit.counts * np.log(fit.counts)).sum())
    tilts = retilted(fit, np.array([0.3, -0.2]))
    assert profile_log_likelihood(tilts, fit.owner) == pytest.approx(-client_entropy + constant, abs=1e-8)
    assert fit.profile_log_likelihood == pytest.approx(-client_entropy + constant, abs=1e-8)
    # The class term: the joint log likelihood of (x, y), written out, less the part above.
    classes = log_softmax(rng.normal(size=(len(fit.owner), 4)), axis=1)
    label = rng.integers(0, 4, len(fit.owner))
    each = np.arange(len(fit.owner))
    joint = np.log(fit.weights[each, fit.owner] * np.exp(classes[each, label])).sum()
    class_entropy = -classes[each, label].sum()
    assert joint == pytest.approx(-client_entropy - class_entropy + constant, abs=1e-8)
    n = fit.counts.sum()
    papers = -float((fit.counts * np.log(fit.counts / n)).sum())
    assert fit.profile_log_likelihood - (-client_entropy + papers) == pytest.approx(-n * np.log(n), abs=1e-8)


def test_at_the_best_intercepts_of_any_slopes_the_profile_is_the_dual_and_a_constant() -> None:
    """So the dual's likelihood ratios of slopes are those of the profile; at other intercepts the two differ."""
    fit = fitted()
    slopes = 0.7 * fit.xi
    logits = fit.features @ slopes.T + np.log(fit.counts)
    for _ in range(2000):  # each step gives every population the expected number of observations
        logits += np.log(fit.counts / softmax(logits, axis=1).sum(0))
    rows, constant = np.arange(len(fit.owner)), float((fit.counts * np.log(fit.counts)).sum())

    def both(logits: Floats) -> tuple[float, float]:
        tilts = logits - np.log(fit.counts)
        dual = log_softmax(logits, axis=1)[rows, fit.owner].sum()
        return profile_log_likelihood(tilts - tilts[:, [0]], fit.owner), float(dual) - constant

    profile, dual = both(logits)
    assert profile == pytest.approx(dual, abs=1e-6)
    assert profile < fit.profile_log_likelihood - 0.1
    elsewhere, dual_elsewhere = both(logits + np.array([0.0, 0.001, -0.001]))
    assert elsewhere < profile
    assert elsewhere < dual_elsewhere - 1e-3


def test_04_the_profile_is_the_largest_likelihood_over_all_weights() -> None:
    """The primal problem as it is stated, off the best tilts: the weights are allowed, and no others do better."""
    fit, rng = fitted(), np.random.default_rng(2)
    tilts = retilted(fit, np.array([0.3, -0.2])) + rng.normal(scale=0.05, size=3)
    tilts = tilts + fit.features @ rng.normal(scale=0.05, size=(2, 3))
    e = np.exp(tilts)
    p = reference_weights(tilts, solve_multipliers(tilts))
    assert p.min() > 0
    np.testing.assert_allclose(np.append(p @ e, p.sum()), 1, atol=1e-10)
    allowed = null_space(np.column_stack([e, np.ones(len(e))]).T)  # changes that keep to the constraints
    np.testing.assert_allclose((1 / p) @ allowed, 0, atol=1e-6)  # log is concave: no slope there means the maximum
    for change in rng.normal(size=(20, allowed.shape[1])) @ allowed.T:
        assert np.log(p + 0.1 * p.min() * change).sum() < np.log(p).sum()
    likelihood = np.log(p[:, None] * e)[np.arange(len(p)), fit.owner].sum()
    assert profile_log_likelihood(tilts, fit.owner) == pytest.approx(likelihood, abs=1e-9)
    assert likelihood < fit.profile_log_likelihood - 0.01


def test_05_derivative_of_the_profile_off_the_optimum() -> None:
    """``d pl / d gamma_l = n_l - N rho_l``, where rho is not n / N."""
    fit = fitted()
    rng = np.random.default_rng(2)
    tilts = retilted(fit, np.array([0.3, -0.2])) + rng.normal(scale=0.05, size=3)
    tilts = tilts + fit.features @ rng.normal(scale=0.05, size=(2, 3))
    expected = fit.counts - len(tilts) * solve_multipliers(tilts)
    assert np.abs(expected).max() > 1
    for population in range(3):
        step = np.zeros(3)
        step[population] = 1e-4
        up, down = (profile_log_likelihood(tilts + sign * step, fit.owner) for sign in (1, -1))
        assert (up - down) / 2e-4 == pytest.approx(expected[population], rel=1e-5, abs=1e-5)


@given(st.lists(st.floats(-0.6, 0.6), min_size=2, max_size=2), st.integers(0, 50))
def test_06_the_reference_is_not_identified(slope: list[float], seed: int) -> None:
    """Another reference: the same softmax, the same profile likelihood, the same routing."""
    fit = fitted(seed)
    tilts = retilted(fit, np.array(slope))
    before, after = (softmax(t + np.log(fit.counts), axis=1) for t in (fit.log_tilts, tilts))
    np.testing.assert_allclose(after, before, atol=1e-12)
    assert (tilts.argmax(1) == fit.log_tilts.argmax(1)).all()
    profile = profile_log_likelihood(tilts, fit.owner)
    assert profile == pytest.approx(fit.profile_log_likelihood, abs=1e-7)


def test_the_logarithm_goes_on_as_its_own_parabola_below_the_least_value() -> None:
    """Second-order Taylor polynomial at ``least``: Newton's method may step there and must come back."""
    least, x = 0.25, np.array([-1.0, 0.0, 0.1, 0.25, 0.5, 2.0])
    value, first, second = _pseudo_log(x, least)
    z = (x - least) / least
    inside = x >= least
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(value, np.where(inside, np.log(x), np.log(least) + z - z**2 / 2), rtol=1e-14)
        np.testing.assert_allclose(first, np.where(inside, 1 / x, (1 - z) / least), rtol=1e-14)
    np.testing.assert_allclose(second, -1 / np.maximum(x, least) ** 2, rtol=1e-14)


def test_impossible_tilts_are_refused() -> None:
    with refused("no reference on these observations"):
        solve_multipliers(np.full((5, 2), 1.0))


def test_tilts_that_overflow_are_refused() -> None:
    tilts = np.array([[0.0, 0.0], [0.0, 1200.0], [0.0, -3.0]])
    with refused("a log tilt of 1200 is above 700", "leave out observations far from the others"):
        profile_log_likelihood(tilts, np.array([0, 1, 1]))
