"""Tests of samples with an excess of zeros: both parts from their definitions, coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm

from feddrm.drm import DensityRatioModel, TwoPartFit, inference
from feddrm.drm.basis import Floats
from feddrm.drm.inference import Testing
from refusal import refused

NONE = Testing(correction="none")


def draw(rng: np.random.Generator, shares: tuple[float, ...], means: tuple[float, ...], n: int = 100) -> list[Floats]:
    return [np.where(rng.random(n) < p, 0.0, np.exp(rng.normal(m, 0.6, n))) for p, m in zip(shares, means, strict=True)]


def test_both_parts_from_their_definitions() -> None:
    samples = draw(np.random.default_rng(0), (0.2, 0.4), (0.0, 0.3))
    both = TwoPartFit.of(DensityRatioModel("lognormal"), samples)
    positive = DensityRatioModel("lognormal").fit([x[x > 0] for x in samples])
    zeros = np.array([(x == 0).sum() for x in samples])
    np.testing.assert_array_equal(both.zeros, zeros)
    np.testing.assert_allclose(both.positive.xi, positive.xi)
    np.testing.assert_allclose(both.mean().value[:, 0], (1 - zeros / 100) * inference.mean(positive).value[:, 0])
    pooled = zeros.sum() / 200
    binomial = 2 * (binom.logpmf(zeros, 100, zeros / 100) - binom.logpmf(zeros, 100, pooled)).sum()
    test = both.homogeneity(NONE)
    assert test.statistic == pytest.approx(binomial + inference.homogeneity(positive, NONE).statistic)
    assert test.degrees == 3
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 3))
    low, high = both.share_interval()
    for i, p in enumerate(zeros / 100):  # Wilson: the shares whose test does not reject the observed one
        for limit in (low[i], high[i]):
            assert abs(p - limit) / np.sqrt(limit * (1 - limit) / 100) == pytest.approx(norm.ppf(0.975))


def test_a_quantile_below_the_share_of_zeros_is_zero() -> None:
    samples = draw(np.random.default_rng(1), (0.2, 0.6), (0.0, 0.0), 400)
    both = TwoPartFit.of(DensityRatioModel("lognormal"), samples)
    median = both.quantile([0.5])[:, 0]
    assert median[1] == 0
    level = (0.5 - both.shares[0]) / (1 - both.shares[0])
    assert median[0] == inference.quantile(both.positive, [level])[0, 0]
    low, high = both.quantile_interval([0.5])
    assert low[0, 0] < median[0] < high[0, 0]


def test_dominance_is_the_double_sum_over_all_masses() -> None:
    """Zeros first: they tie with zeros, and are below every positive value."""
    samples = draw(np.random.default_rng(5), (0.1, 0.5, 0.3), (0.0, 0.4, 0.2), 60)
    samples[2] = np.round(samples[2], 1) + 0.1 * (samples[2] > 0)  # ties among positive values, too
    both = TwoPartFit.of(DensityRatioModel("lognormal"), samples)
    x = np.append(0.0, both.positive.values[:, 0])
    masses = np.vstack([both.shares, (1 - both.shares) * both.positive.weights])
    np.testing.assert_allclose(masses.sum(0), 1)
    below = (x[:, None] < x) + 0.5 * (x[:, None] == x)
    np.testing.assert_allclose(both.dominance().value, masses.T @ below @ masses, rtol=1e-12)
    assert (both.dominance().error.diagonal() == 0).all()
    same = np.exp(np.random.default_rng(6).normal(size=50))
    few, many = np.append(same, np.zeros(50)), np.append(same, np.zeros(150))
    value = TwoPartFit.of(DensityRatioModel("lognormal"), [few, many]).dominance().value
    assert value[0, 1] == pytest.approx(0.5 * (1 - 0.75 / 2) + 0.5 * 0.25 / 2)  # not 1/2, as of positive values alone


def test_errors_of_dominance_and_differences_are_those_of_the_jackknife() -> None:
    """Leaving out one observation at a time, zero or positive; nothing of the formula is used."""
    samples = draw(np.random.default_rng(7), (0.2, 0.5), (0.0, 0.3), 150)
    samples[1] = samples[1][:90]

    def value(parts: list[Floats]) -> list[float]:
        both = TwoPartFit.of(DensityRatioModel("lognormal"), parts)
        return [float(both.dominance().value[0, 1]), float(both.mean().value[1, 0] - both.mean().value[0, 0])]

    variance = np.zeros(2)
    for place, part in enumerate(samples):
        without = [np.delete(part, i) for i in range(len(part))]
        values = [value([*samples[:place], fewer, *samples[place + 1 :]]) for fewer in without]
        variance += (len(part) - 1) * np.var(values, axis=0)
    both = TwoPartFit.of(DensityRatioModel("lognormal"), samples)
    np.testing.assert_allclose(both.dominance().error[[0, 1], [1, 0]], np.sqrt(variance[0]), rtol=0.03)
    difference = both.mean_differences()
    np.testing.assert_allclose(difference.value[0], both.mean().value[1] - both.mean().value[0])
    np.testing.assert_allclose(difference.error[0, 0], np.sqrt(variance[1]), rtol=0.03)


@pytest.mark.slow
def test_intervals_of_dominance_cover() -> None:
    rng, hits, times = np.random.default_rng(8), 0, 500
    truth = 0.2 * (1 - 0.5 / 2) + 0.8 * 0.5 * norm.cdf(0.3 / 0.6 / 2**0.5)
    for _ in range(times):
        both = TwoPartFit.of(DensityRatioModel("lognormal"), draw(rng, (0.2, 0.5), (0.0, 0.3)))
        low, high = both.dominance().interval()
        hits += low[0, 1] <= truth <= high[0, 1]
    assert binom.ppf(0.0005, times, 0.95) <= hits <= binom.ppf(0.9995, times, 0.95)


@pytest.mark.slow
def test_intervals_cover_and_the_test_has_its_size() -> None:
    rng = np.random.default_rng(2)
    truth = 0.7 * np.exp(0.6**2 / 2)
    level = (0.6 - 0.3) / 0.7
    quantile = np.exp(0.6 * norm.ppf(level))
    hits, rejected = [], 0
    for _ in range(500):
        both = TwoPartFit.of(DensityRatioModel("lognormal"), draw(rng, (0.3, 0.3), (0.0, 0.0)))
        mean, limits = both.mean().interval(), both.quantile_interval([0.6])
        hits.append([mean[0][0, 0] <= truth <= mean[1][0, 0], limits[0][0, 0] <= quantile <= limits[1][0, 0]])
        rejected += both.homogeneity(NONE).p_value < 0.05
    low, high = binom.interval(0.999, 500, 0.95)
    assert (low <= np.sum(hits, axis=0)).all()
    assert (np.sum(hits, axis=0) <= high).all()
    assert binom.ppf(0.0005, 500, 0.05) <= rejected <= binom.ppf(0.9995, 500, 0.05)


def test_what_is_no_excess_of_zeros_is_refused() -> None:
    model = DensityRatioModel("lognormal")
    good = [0.0, 1.0, 2.0, 3.0, 0.5]
    with refused("no sample has a zero"):
        TwoPartFit.of(model, [[1.0, 2.0], [1.0, 3.0]])
    with refused("population '2' has the value -1", "none below 0"):
        TwoPartFit.of(model, [good, [0.0, -1.0, 2.0]])
    with refused("population '2' has 1 positive observations"):
        TwoPartFit.of(model, [good, [0.0, 0.0, 2.0]])
    with refused("need one column, not 2"):
        TwoPartFit.of(model, [np.ones((5, 2)), np.ones((5, 2))])
    both = TwoPartFit.of(model, draw(np.random.default_rng(3), (0.2, 0.4), (0.0, 0.3)))
    with refused("correct it by 'bartlett' or 'none'"):
        both.homogeneity(Testing(correction="bootstrap"))


def test_quantile_intervals_of_few_values_cover() -> None:
    rng = np.random.default_rng(4)
    times, hits = 200, 0
    for _ in range(times):
        samples = [np.where(rng.random(100) < 0.3, 0.0, 1.0 + (rng.random(100) < share)) for share in (0.7, 0.4)]
        low, high = TwoPartFit.of(DensityRatioModel("identity"), samples).quantile_interval(0.5)
        hits += low[0, 0] <= 1 <= high[0, 0]  # zeros and ones have a share of 0.51
    assert hits >= binom.ppf(0.001, times, 0.95)
