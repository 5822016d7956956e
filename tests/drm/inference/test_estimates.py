"""Tests of estimates and standard errors: coverage by simulation, consistency with known populations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import binom, norm, t

from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.basis import Floats
from feddrm.drm.inference.estimates import _gaussian, quantile_estimate
from feddrm.drm.logistic import information
from refusal import refused

MEANS, DEVIATIONS = np.array([0.0, 0.4, -0.3]), np.array([1.0, 1.2, 0.9])
PRECISION = DEVIATIONS**-2
TRUTH = np.column_stack(
    [-np.log(DEVIATIONS) - MEANS**2 * PRECISION / 2, MEANS * PRECISION, (1 - PRECISION) / 2]
)  # against the first, a standard normal
LEVELS = (0.25, 0.5)
QUANTILES = MEANS[:, None] + DEVIATIONS[:, None] * norm.ppf(LEVELS)
POINTS = (-1.0, 0.5)
HEIGHTS = norm.cdf((np.array(POINTS) - MEANS[:, None]) / DEVIATIONS[:, None])


def draw(rng: np.random.Generator, sizes: tuple[int, ...] = (120, 80, 150)) -> list[Floats]:
    return [rng.normal(*p) for p in zip(MEANS, DEVIATIONS, sizes, strict=True)]


def plausible(hits: Floats, probability: float) -> bool:
    """Within the 99.9 % range of a binomial count with this probability."""
    low, high = binom.interval(0.999, len(hits), probability)
    return bool(low <= np.sum(hits) <= high)


@pytest.mark.slow
def test_95_percent_intervals_cover_95_percent() -> None:
    rng = np.random.default_rng(5)
    hits: dict[str, list[Floats]] = {"tilts": [], "mean": [], "quantile": [], "distribution": []}
    for _ in range(400):
        fit = DensityRatioModel().fit(draw(rng))
        for name, (low, high), truth in (
            ("tilts", inference.tilts(fit).interval(), TRUTH),
            ("mean", inference.mean(fit).interval(), MEANS[:, None]),
            ("quantile", inference.quantile_interval(fit, LEVELS), QUANTILES),
            ("distribution", inference.distribution(fit, POINTS).interval(), HEIGHTS),
        ):
            hits[name].append((low <= truth) & (truth <= high))
    for name, rows in hits.items():
        table = np.array(rows).reshape(len(rows), 3, -1)[:, 1:] if name == "tilts" else np.array(rows)
        for column in table.reshape(len(rows), -1).T:
            assert plausible(column, 0.95), (name, column.mean())


def test_the_sandwich_agrees_with_the_formula_for_fixed_sizes() -> None:
    """Inverse information, less 1/n_1 + 1/n_l between the intercepts (Prentice and Pyke, 1979)."""
    sizes = (20_000, 12_000, 30_000)
    fit = DensityRatioModel("identity").fit(draw(np.random.default_rng(8), sizes))
    fit = DensityRatioModel().fit([np.asarray(s) for s in fit.samples])
    design = np.column_stack([np.ones(sum(sizes)), fit.features])
    inverse = np.linalg.inv(information(design, fit.optimum.posterior, np.zeros((3, 3))))
    inverse[np.ix_([0, 3], [0, 3])] -= 1 / sizes[0] + np.diag([1 / sizes[1], 1 / sizes[2]])
    np.testing.assert_allclose(inference.coefficient_covariance(fit), inverse, atol=0.04 * np.diag(inverse).max())
    np.testing.assert_allclose(inference.tilts(fit).error[1:].ravel() ** 2, np.diag(inverse), rtol=0.05)


def test_the_sandwich_of_a_ridge_from_its_definition() -> None:
    """In the basis as it was given: information with the ridge outside, scores centred within populations inside."""
    ridge, sizes = 3.0, (40, 25, 60)
    fit = DensityRatioModel(ridge=ridge, penalty="coefficients").fit(draw(np.random.default_rng(16), sizes))
    design = np.column_stack([np.ones(sum(sizes)), fit.features])
    outer = np.kron(np.eye(3)[1:, 1:] - 1 / 3, np.diag([0.0, ridge, ridge]))
    scores = []
    for x, p, owner in zip(design, fit.optimum.posterior[:, 1:], fit.owner, strict=True):
        outer += np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
        scores.append(np.kron(np.eye(3)[owner][1:] - p, x))
    inner = sum(n * np.cov(np.array(scores)[fit.owner == i].T) for i, n in enumerate(sizes))
    wanted = np.linalg.inv(outer) @ inner @ np.linalg.inv(outer)
    np.testing.assert_allclose(inference.coefficient_covariance(fit), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_estimates_approach_the_known_populations() -> None:
    fit = DensityRatioModel().fit(draw(np.random.default_rng(9), (40_000, 20_000, 30_000)))
    tilts, mean = inference.tilts(fit), inference.mean(fit)
    assert np.abs((tilts.value - TRUTH)[1:] / tilts.error[1:]).max() < 4
    assert np.abs(mean.value[:, 0] - MEANS).max() < 0.03
    np.testing.assert_allclose(inference.quantile(fit, LEVELS), QUANTILES, atol=0.03)
    np.testing.assert_allclose(inference.distribution(fit, POINTS).value, HEIGHTS, atol=0.01)
    square = inference.expectation(fit, lambda x: np.asarray(x) ** 2)
    np.testing.assert_allclose(square.value[:, 0], MEANS**2 + DEVIATIONS**2, atol=0.05)


def test_gamma_populations_are_recovered() -> None:
    rng = np.random.default_rng(10)
    shapes, rates = (2.0, 3.0), (1.0, 1.5)
    fit = DensityRatioModel("gamma").fit([rng.gamma(a, 1 / b, 20_000) for a, b in zip(shapes, rates, strict=True)])
    tilts = inference.tilts(fit)
    assert np.abs((tilts.value[1, 1:] - [rates[0] - rates[1], shapes[1] - shapes[0]]) / tilts.error[1, 1:]).max() < 4


def test_means_of_the_basis_are_the_sample_s_own_and_medians_are_better() -> None:
    """Nothing is gained where the constraints already fix the answer, and something everywhere else."""
    rng = np.random.default_rng(11)
    own, pooled = [], []
    for _ in range(300):
        samples = draw(rng, (60, 60, 60))
        fit = DensityRatioModel().fit(samples)
        own.append([np.median(s) for s in samples])
        pooled.append(inference.quantile(fit, 0.5)[:, 0])
    estimate = inference.mean(fit)
    np.testing.assert_allclose(estimate.value[:, 0], [s.mean() for s in samples], atol=1e-12)
    np.testing.assert_allclose(estimate.error[:, 0], [s.std(ddof=1) / 60**0.5 for s in samples], rtol=1e-9)
    gain = (np.array(own) - MEANS) ** 2 - (np.array(pooled) - MEANS) ** 2
    assert (gain.mean(0) > 2 * gain.std(0) / len(gain) ** 0.5).all()


def test_distribution_and_quantiles_are_inverse() -> None:
    fit = DensityRatioModel().fit(draw(np.random.default_rng(12)))
    levels = np.array([0.1, 0.37, 0.5, 0.9])
    at = inference.quantile(fit, levels)
    for i in range(3):
        reached = inference.distribution(fit, at[i]).value[i]
        below = inference.distribution(fit, np.nextafter(at[i], -np.inf)).value[i]
        assert (reached >= levels - 1e-12).all()
        assert (below < levels).all()
    whole = inference.distribution(fit, [-100.0, 100.0]).value
    np.testing.assert_allclose(whole, [[0, 1]] * 3, atol=1e-12)


def test_a_quantile_does_not_miss_its_step_by_rounding() -> None:
    """Populations alike: the median of 0 ... n - 1 is where exactly half of the mass is reached."""
    for n in range(4, 80, 2):
        fit = DensityRatioModel("identity").fit([np.arange(n) * 1.0] * 3)
        assert (inference.quantile(fit, 0.5) == n // 2 - 1).all(), n


def test_quantile_intervals_of_zeros_and_ones_cover() -> None:
    """Of two values the distribution function is certain at the larger one; the doubt is at the smaller."""
    rng = np.random.default_rng(3)
    times, hits = 200, 0
    for _ in range(times):
        fit = DensityRatioModel("identity").fit([(rng.random(100) < share) * 1.0 for share in (0.48, 0.6)])
        low, high = inference.quantile_interval(fit, 0.5)
        hits += low[0, 0] <= 0 <= high[0, 0]
    assert hits >= binom.ppf(0.001, times, 0.95)


def test_what_cannot_be_answered_is_refused() -> None:
    rng = np.random.default_rng(13)
    fit = DensityRatioModel().fit(draw(rng))
    with refused("between 0 and 1"):
        inference.quantile(fit, [0.5, 1.0])
    with refused("distribution at [0.0, nan]"):
        inference.distribution(fit, [0.0, np.nan])
    with refused("population '1'", "shape (3,) from 120 observations"):
        inference.expectation(fit, lambda x: x[:3])
    with refused("population '1'", "finite numbers"):
        inference.expectation(fit, lambda x: np.full(len(x), np.inf))
    with refused("confidence 95"):
        inference.tilts(fit).interval(95)
    wide = DensityRatioModel("identity").fit([rng.normal(size=(30, 2)), rng.normal(size=(30, 2))])
    with refused("need one column, not 2"):
        inference.quantile(wide, 0.5)
    assert inference.mean(wide).value.shape == (2, 2)


def test_too_many_parameters_for_standard_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.drm.logistic.MOST_DENSE", 1)
    fit = DensityRatioModel().fit(draw(np.random.default_rng(14)))
    with refused("standard errors of 6 parameters"):
        inference.tilts(fit)


def test_intervals_of_means_are_t_and_those_of_probabilities_stay_inside() -> None:
    samples = draw(np.random.default_rng(17), (12, 9, 15))
    fit = DensityRatioModel().fit(samples)
    low, high = inference.mean(fit).interval()
    for i, x in enumerate(samples):
        reach = t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5
        assert low[i, 0] == pytest.approx(x.mean() - reach)
        assert high[i, 0] == pytest.approx(x.mean() + reach)
    low, high = inference.distribution(fit, [-9.0, -1.0, 3.0]).interval()
    assert (low >= 0).all()
    assert (high <= 1).all()


def test_dominance_of_equal_weights_counts_pairs() -> None:
    """Populations alike have uniform weights: every pair of pooled observations counts once."""
    x = np.array([1.0, 2.0, 2.0, 3.0, 5.0])
    fit = DensityRatioModel("identity").fit([x, x])
    estimate = inference.dominance(fit)
    np.testing.assert_allclose(estimate.value, 0.5, atol=1e-12)
    far = DensityRatioModel("identity").fit([x, x + 1.5])
    i, j = far.weights.T
    y = far.values[:, 0]
    below = (y[:, None] < y) + 0.5 * (y[:, None] == y)
    assert inference.dominance(far).value[0, 1] == pytest.approx(i @ below @ j)
    assert inference.dominance(far).value[1, 0] == pytest.approx(1 - i @ below @ j)


def test_the_error_of_dominance_agrees_with_the_bootstrap() -> None:
    fit = DensityRatioModel().fit(draw(np.random.default_rng(18)))
    y = fit.values[:, 0]
    below = (y[:, None] < y) + 0.5 * (y[:, None] == y)
    drawn = inference.bootstrap(fit, lambda w: w[:, 0] @ below @ w[:, 1], 400)
    assert inference.dominance(fit).error[0, 1] == pytest.approx(float(drawn.error), rel=0.12)


def test_quantile_errors_agree_with_the_normal_theory() -> None:
    """For the median of one of two equal normal populations, from all observations: between pooled and own sample."""
    rng = np.random.default_rng(19)
    fit = DensityRatioModel().fit([rng.normal(0, 1, 4000), rng.normal(0, 1, 4000)])
    error = quantile_estimate(fit, [0.5])[0].error[:, 0]
    own, pooled = (np.sqrt(np.pi / 2 / n) for n in (4000, 8000))
    assert ((pooled < error) & (error < own)).all()


def test_the_error_of_a_density_agrees_with_the_bootstrap_and_its_normal_interval_covers() -> None:
    rng = np.random.default_rng(4)
    at = np.array([-1.0, 0.0, 1.5])
    fit = DensityRatioModel().fit({"a": rng.normal(0, 1, 300), "b": rng.normal(0.5, 1.2, 200)})
    estimate = inference.density_estimate(fit, "b", at)
    drawn = inference.bootstrap(fit, lambda w: _gaussian(fit.values[:, 0], fit.weights[:, 1], at).T @ w[:, 1], 800)
    np.testing.assert_allclose(estimate.error, drawn.error, rtol=0.08)
    np.testing.assert_array_equal(estimate.value, inference.density(fit, 1, at))
    low, high = estimate.interval()
    truth = norm(0.5, 1.2).pdf(at)
    assert ((low < truth) & (truth < high)).all()
    # With the others' observations the density is more precise than a kernel estimate from the own sample.
    own = _gaussian(fit.samples[1], np.full(200, 1 / 200), at)
    assert (estimate.error < own.std(0) / np.sqrt(200)).all()


def test_the_density_is_one_and_near_the_truth() -> None:
    rng = np.random.default_rng(0)
    fit = DensityRatioModel("gamma").fit([rng.gamma(2, 1, 2000), rng.gamma(3, 1, 3000)])
    at = np.linspace(0, 25, 4001)
    for i, shape in enumerate((2, 3)):
        values = inference.density(fit, i, at)
        assert trapezoid(values, at) == pytest.approx(1, abs=0.01)
        assert values[0] == 0
        truth = at ** (shape - 1) * np.exp(-at) / (1, 1, 2)[shape - 1]
        assert trapezoid(np.abs(values - truth), at) < 0.1
    plain = DensityRatioModel("normal").fit([rng.normal(0, 1, 500), rng.normal(1, 1, 500)])
    at = np.linspace(-9, 9, 4001)
    assert trapezoid(inference.density(plain, 1, at), at) == pytest.approx(1, abs=1e-6)
