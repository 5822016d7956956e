"""Tests of differences of means: Welch's by scipy, the model's by Welch's where both are one, and by the jackknife."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, ttest_ind

from feddrm.drm import DensityRatioModel
from feddrm.drm.basis import Floats
from feddrm.drm.inference import mean_differences, welch_differences
from feddrm.drm.inference.mean_differences import pairs


def lognormal(rng: np.random.Generator, sd: float = 0.6, sizes: tuple[int, ...] = (40, 60, 120)) -> list[Floats]:
    return [np.exp(rng.normal(m, sd, (n, 1))) for m, n in zip((0.0, 0.3, 0.5), sizes, strict=True)]


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_welch_is_that_of_scipy(level: float) -> None:
    rng = np.random.default_rng(0)
    samples = [rng.normal(m, 1 + m, (n, 2)) * (1, 9) for m, n in ((0, 12), (0.5, 31), (2, 7))]
    low, high = welch_differences(samples).interval(level)
    tests = [ttest_ind(samples[j], samples[i], equal_var=False) for i, j in ((0, 1), (0, 2), (1, 2))]
    theirs = [test.confidence_interval(level) for test in tests]
    np.testing.assert_allclose(low, [interval.low for interval in theirs], rtol=1e-12)
    np.testing.assert_allclose(high, [interval.high for interval in theirs], rtol=1e-12)


@pytest.mark.parametrize("basis", ["identity", "normal", "gamma"])
def test_with_the_column_in_the_basis_the_model_says_what_welch_says(basis: str) -> None:
    samples = lognormal(np.random.default_rng(1))
    by_model, welch = mean_differences(DensityRatioModel(basis).fit(samples)), welch_differences(samples)
    np.testing.assert_allclose(by_model.value, welch.value, rtol=1e-7)
    np.testing.assert_allclose(by_model.interval(), welch.interval(), rtol=1e-7)
    other = mean_differences(DensityRatioModel("lognormal").fit(samples))
    assert (np.abs(other.value / welch.value - 1) > 1e-3).all()


def test_the_error_is_that_of_the_jackknife() -> None:
    """Leaving out one observation at a time; nothing of the formula is used."""
    samples = lognormal(np.random.default_rng(2))
    model = DensityRatioModel("lognormal")
    variance = np.zeros((3, 1))
    for place, part in enumerate(samples):
        without = [[*samples[:place], np.delete(part, i, 0), *samples[place + 1 :]] for i in range(len(part))]
        means = [fit.weights.T @ fit.values for fit in map(model.fit, without)]
        variance += (len(part) - 1) * np.var([[m[j] - m[i] for i, j in pairs(3)] for m in means], axis=0)
    np.testing.assert_allclose(mean_differences(model.fit(samples)).error, np.sqrt(variance), rtol=0.05)


def test_constant_columns_have_no_length() -> None:
    constant = [np.full((5, 1), 2.0), np.full((4, 1), 3.0)]
    low, high = welch_differences(constant).interval()
    assert low == high == 1


@pytest.mark.slow
def test_the_model_errs_less_on_long_tails_and_covers() -> None:
    """Its intervals are no shorter than Welch's, which miss the tails that a small sample has not seen."""
    rng, errors, hits, times = np.random.default_rng(0), [], 0, 300
    truth = np.exp(1.5**2 / 2) * (np.exp(0.3) - 1)
    for _ in range(times):
        samples = lognormal(rng, 1.5, (40, 60, 200))
        by_model = mean_differences(DensityRatioModel("lognormal").fit(samples))
        low, high = by_model.interval()
        hits += low[0, 0] <= truth <= high[0, 0]
        errors.append([by_model.value[0, 0] - truth, welch_differences(samples).value[0, 0] - truth])
    ours, theirs = np.sqrt(np.mean(np.square(errors), axis=0))
    assert ours < 0.95 * theirs
    assert hits >= binom.ppf(0.001, times, 0.95)
