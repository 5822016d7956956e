"""Tests of comparisons of quantiles: the likelihood ratio against a direct optimisation, size and power."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom, chi2, norm, poisson

from feddrm.drm import DensityRatioFit, DensityRatioModel, inference
from feddrm.drm.inference import quantile_tests
from populations import three
from refusal import refused


def _largest(fit: DensityRatioFit, within: Callable[[np.ndarray], list[float]], kind: str) -> float:
    """The constrained maximum over tilts and masses, by a general optimiser; of a population's masses, ``within``."""
    x = fit.values[:, 0]

    def tilts(v: np.ndarray) -> np.ndarray:
        return np.exp(v[-2] + v[-1] * x)

    def negative(v: np.ndarray) -> float:
        return -float(v[: len(x)].sum() + np.log(tilts(v))[fit.owner == 1].sum())

    constraints = [
        {"type": "eq", "fun": lambda v: np.exp(v[: len(x)]).sum() - 1},
        {"type": "eq", "fun": lambda v: (np.exp(v[: len(x)]) * tilts(v)).sum() - 1},
        {"type": kind, "fun": lambda v: within(np.exp(v[: len(x)]))},
        {"type": kind, "fun": lambda v: within(np.exp(v[: len(x)]) * tilts(v))},
    ]
    start = np.append(np.full(len(x), -np.log(len(x))), [0.0, 0.0])
    best = minimize(negative, start, method="SLSQP", constraints=constraints, options={"maxiter": 500, "ftol": 1e-12})
    assert best.success
    return float(-best.fun)


def test_the_likelihood_ratio_at_a_cut_is_the_largest_over_all_weights() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.normal(0, 1, 12), rng.normal(0.5, 1, 10)]
    fit = DensityRatioModel("identity").fit(samples)
    x = fit.values[:, 0]
    cut, level = float(np.sort(x)[10]), 0.5
    found = quantile_tests._ratio_at(fit, level, [0, 1], cut)
    best = _largest(fit, lambda mass: [mass @ ((x <= cut) - level)], "eq")
    assert found == pytest.approx(2 * (fit.profile_log_likelihood - best), abs=1e-5)


@pytest.mark.parametrize("cut", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("level", [0.3, 0.5])
def test_among_equal_observations_a_quantile_is_a_jump_over_the_level(cut: float, level: float) -> None:
    first = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], [6, 4, 3, 2, 1])
    second = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], [1, 3, 3, 4, 3])
    fit = DensityRatioModel("identity").fit([first, second])
    x = fit.values[:, 0]
    found = quantile_tests._ratio_at(fit, level, [0, 1], cut)
    best = _largest(fit, lambda mass: [level - mass @ (x < cut), mass @ (x <= cut) - level], "ineq")
    assert found == pytest.approx(2 * (fit.profile_log_likelihood - best), abs=1e-5)


def test_equal_discrete_populations_are_not_told_apart() -> None:
    rng = np.random.default_rng(2)
    shares = {"a": [0.1, 0.2, 0.4, 0.2, 0.1], "b": [0.1, 0.2, 0.4, 0.2, 0.1], "c": [0.4, 0.3, 0.1, 0.1, 0.1]}
    fit = DensityRatioModel("normal").fit({name: rng.choice(np.arange(5.0), 300, p=p) for name, p in shares.items()})
    for level in (0.25, 0.5, 0.75):
        assert inference.equal_quantiles(fit, level, ["a", "b"]).p_value > 0.05
    assert inference.equal_quantiles(fit, 0.5, ["a", "c"]).p_value < 0.001


def test_the_test_takes_the_best_cut() -> None:
    fit = DensityRatioModel().fit(three())
    test = inference.equal_quantiles(fit, 0.5, ["a", "b"])
    every = [quantile_tests._ratio_at(fit, 0.5, [0, 1], float(cut)) for cut in fit.values[:, 0]]
    assert test.statistic == pytest.approx(min(every))
    assert test.degrees == 1
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 1))
    assert test.hypothesis == "quantile 0.5: a = b"
    assert inference.equal_quantiles(fit, 0.5).degrees == 2
    wald = inference.equal_quantiles(fit, 0.5, ["a", "b"], "wald")
    difference = inference.quantile_differences(fit, [0.5])
    assert wald.statistic == pytest.approx((difference.value[1, 0] / difference.error[1, 0]) ** 2)


def test_the_best_cut_is_found_where_populations_are_far_apart() -> None:
    rng = np.random.default_rng(12)
    fit = DensityRatioModel("identity").fit([rng.normal(0, 1, 14), rng.normal(2, 1, 12)])
    x, level = fit.values[:, 0], 0.3
    cut = float(np.sort(x)[9])
    best = _largest(fit, lambda mass: [mass @ ((x <= cut) - level)], "eq")
    found = inference.equal_quantiles(fit, level).statistic
    assert found <= 2 * (fit.profile_log_likelihood - best) + 1e-4  # it was 0.9 larger


@pytest.mark.parametrize("digits", [1, 2])
def test_the_best_cut_is_found_among_equal_observations(digits: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        fit = DensityRatioModel("identity").fit([np.round(rng.normal(m, 1, 60), digits) for m in (0.0, 0.4, 0.8)])
        every = [quantile_tests._ratio_at(fit, 0.5, [0, 1, 2], float(cut)) for cut in np.unique(fit.values)[40:140]]
        assert inference.equal_quantiles(fit, 0.5).statistic <= min(every, default=np.inf) + 1e-6


def test_the_least_of_a_step_function_is_found_by_parabolas() -> None:
    tried = []

    def value(place: int) -> float:
        tried.append(place)
        return float(np.inf) if place > 9500 else (place - 1234.4) ** 2 / 1e4 + 1e-9 * place**3

    for start, reach in ((5000, 30), (9900, 30), (0, 1)):
        tried.clear()
        best = quantile_tests._least(value, 0, 9999, start, reach)
        assert value(best) <= min(value(best - 1), value(best + 1))
        assert len(set(tried)) < 60


def test_differences_are_against_any_population() -> None:
    fit = DensityRatioModel().fit(three())
    values = inference.quantile(fit, [0.25, 0.5])
    difference = inference.quantile_differences(fit, [0.25, 0.5], against="b")
    np.testing.assert_allclose(difference.value, values - values[1])
    assert (difference.error[1] < 1e-6).all()
    back = inference.quantile_differences(fit, [0.25, 0.5], against="a")
    np.testing.assert_allclose(back.error[1], difference.error[0])


def test_limits_of_differences_are_normal_where_no_quantile_is_shared() -> None:
    fit = DensityRatioModel().fit(three())
    found = inference.quantile_difference_interval(fit, [0.25, 0.5], 0.9, against="b")
    expected = inference.quantile_differences(fit, [0.25, 0.5], against="b").interval(0.9)
    np.testing.assert_array_equal(found, expected)


def test_limits_of_differences_of_counts_cover() -> None:
    rng = np.random.default_rng(5)
    levels, times = (0.25, 0.5, 0.75), 150
    truth = poisson.ppf(levels, 5) - poisson.ppf(levels, 3)
    hits = np.zeros(3)
    for _ in range(times):
        fit = DensityRatioModel("identity").fit([1.0 * rng.poisson(mean, 80) for mean in (3, 5)])
        low, high = inference.quantile_difference_interval(fit, levels)
        assert (low[0] == high[0]).all()
        hits += (low[1] <= truth) & (truth <= high[1])
    assert hits.min() >= binom.ppf(0.001, times, 0.95)


@pytest.mark.slow
def test_size_and_power() -> None:
    rng = np.random.default_rng(1)
    rejected = {"wald": [0, 0], "likelihood ratio": [0, 0]}
    times = (300, 80)  # the size is near its bounds, the power is not
    for place, shift in enumerate((0.0, 0.5)):
        for _ in range(times[place]):
            fit = DensityRatioModel().fit([rng.normal(m, 1, 80) for m in (0.0, 1.0, 1.0 + shift)])
            for statistic, counts in rejected.items():
                counts[place] += inference.equal_quantiles(fit, 0.5, [1, 2], statistic).p_value < 0.05
    median_alone = norm.cdf(0.5 / np.sqrt(2 * np.pi / 2 / 80) - norm.ppf(0.975))
    for size, power in rejected.values():
        assert binom.ppf(0.0005, 300, 0.05) <= size <= binom.ppf(0.9995, 300, 0.05)
        assert power > binom.ppf(0.95, 80, median_alone)  # the other samples help


def test_what_cannot_be_compared_is_refused() -> None:
    fit = DensityRatioModel().fit(three())
    with refused("unknown statistic 'walt'; did you mean 'wald'?"):
        inference.equal_quantiles(fit, 0.5, None, "walt")
    with refused("quantile levels [1.5]"):
        inference.equal_quantiles(fit, 1.5)
    with refused("give two populations or more"):
        inference.equal_quantiles(fit, 0.5, ["a", "a"])
    with refused("no population 'z'"):
        inference.equal_quantiles(fit, 0.5, ["a", "z"])
    with refused("fit with ridge=0"):
        inference.equal_quantiles(DensityRatioModel(ridge=1.0).fit(three()), 0.5)


def test_populations_whose_high_quantile_is_the_largest_observation_may_be_equal() -> None:
    # No distribution has a quantile of 99 % with all of its mass below: the cut one observation lower is tried, too.
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(8):
        fit = DensityRatioModel().fit([rng.normal(0, 1, 30), rng.normal(0, 1, 30)])
        if (inference.quantile(fit, 0.99) == fit.values.max()).all():
            hits += 1
            assert inference.equal_quantiles(fit, 0.99).p_value > 0.2  # it was 0
    assert hits > 1
