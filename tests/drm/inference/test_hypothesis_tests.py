"""Tests of hypotheses on the tilts: statistics from their definitions, corrections, sizes by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, chi2, kstest

from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.basis import Floats
from feddrm.drm.inference import Testing, hypothesis_tests
from populations import three
from refusal import refused

NONE, WALD = Testing(correction="none"), Testing("wald", "none")


def plausible(hits: Floats, probability: float) -> bool:
    """Within the 99.9 % range of a binomial count with this probability."""
    low, high = binom.interval(0.999, len(hits), probability)
    return bool(low <= np.sum(hits) <= high)


@pytest.mark.slow
def test_homogeneity_rejects_5_percent_of_equal_populations() -> None:
    rng = np.random.default_rng(6)
    p_values = np.array(
        [
            inference.homogeneity(DensityRatioModel().fit([rng.normal(0, 1, n) for n in (120, 80, 150)])).p_value
            for _ in range(800)
        ]
    )
    assert plausible(p_values < 0.05, 0.05)
    assert plausible(p_values < 0.5, 0.5)
    assert kstest(p_values, "uniform").pvalue > 0.001


def test_homogeneity_finds_what_differs() -> None:
    fit = DensityRatioModel().fit(three(7, (120, 80, 150)))
    found = inference.homogeneity(fit, NONE)
    assert found.degrees == 4
    assert found.p_value < 1e-4
    null = sum(n * np.log(n / 350) for n in (120, 80, 150))
    assert found.statistic == pytest.approx(2 * (fit.log_likelihood - null))
    assert found.p_value == pytest.approx(chi2.sf(found.statistic, 4))
    same = DensityRatioModel().fit([np.arange(9.0), np.arange(9.0)])
    assert inference.homogeneity(same).p_value == pytest.approx(1)


def test_equality_of_two_populations_is_a_fit_in_which_they_are_one() -> None:
    samples = three()
    fit = DensityRatioModel().fit(samples)
    test = inference.equality(fit, ["b", "c"], NONE)
    joined = DensityRatioModel().fit([samples["a"], np.concatenate([samples["b"], samples["c"]])])
    shares = 50 * np.log(50 / 170) + 120 * np.log(120 / 170)
    assert test.statistic == pytest.approx(2 * (fit.log_likelihood - joined.log_likelihood - shares), abs=1e-6)
    assert (test.hypothesis, test.degrees) == ("b = c", 2)


def test_without_a_term_the_null_is_the_smaller_basis() -> None:
    fit = DensityRatioModel().fit(three())
    smaller = DensityRatioModel("identity").fit(three())
    test = inference.without_terms(fit, ["x^2"], NONE)
    assert test.statistic == pytest.approx(2 * (fit.log_likelihood - smaller.log_likelihood), abs=1e-6)
    assert test.degrees == 2
    same = inference.linear_hypothesis(fit, [[0, 1, 0, 0], [0, 0, 0, 1]], how=NONE)
    assert same.statistic == pytest.approx(test.statistic, abs=1e-9)


def test_a_hypothesis_at_the_estimate_is_not_rejected() -> None:
    fit = DensityRatioModel().fit(three())
    for how in (NONE, WALD):
        test = inference.linear_hypothesis(fit, np.eye(4), fit.xi[1:].ravel(), how)
        assert test.statistic == pytest.approx(0, abs=1e-8)
        assert test.p_value == pytest.approx(1)


def test_wald_is_the_squared_distance_in_standard_errors() -> None:
    """One constraint, with the inverse information of the multinomial regression."""
    fit = DensityRatioModel().fit(three())
    design = np.column_stack([np.ones(250), fit.features])
    matrix = np.zeros((6, 6))
    for x, p in zip(design, fit.optimum.posterior[:, 1:], strict=True):
        matrix += np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
    error = np.sqrt(np.linalg.inv(matrix)[1, 1])
    test = inference.linear_hypothesis(fit, [[1, 0, 0, 0]], [0.2], WALD)
    assert test.statistic == pytest.approx(((fit.xi[1, 0] - 0.2) / error) ** 2)


def test_pairs_have_holm_s_p_values() -> None:
    fit = DensityRatioModel().fit(three())
    pairs = inference.pairwise(fit, NONE)
    assert [test.hypothesis for test, _ in pairs] == ["a = b", "a = c", "b = c"]
    p = np.array([test.p_value for test, _ in pairs])
    order = np.argsort(p)
    wanted = np.minimum(np.maximum.accumulate(p[order] * [3, 2, 1]), 1)
    np.testing.assert_allclose(np.array([adjusted for _, adjusted in pairs])[order], wanted)


def test_the_bartlett_factor_is_the_mean_of_permuted_statistics() -> None:
    fit = DensityRatioModel("identity").fit([np.arange(8.0), np.arange(3.0, 12.0)])
    how = Testing(correction="bartlett", replicates=300, seed=4)
    test = inference.homogeneity(fit, how)
    rng = np.random.default_rng(5)
    pooled, statistics = fit.values[:, 0], []
    for _ in range(300):
        drawn = rng.permutation(pooled)
        statistics.append(
            inference.homogeneity(DensityRatioModel("identity").fit([drawn[:8], drawn[8:]]), NONE).statistic
        )
    assert test.factor == pytest.approx(np.mean(statistics), abs=5 * np.sqrt(2 / 300) * np.mean(statistics))
    assert test.p_value == pytest.approx(chi2.sf(test.statistic / test.factor, 1))
    bootstrap = inference.homogeneity(fit, Testing(correction="bootstrap", replicates=300, seed=4))
    assert bootstrap.p_value == pytest.approx(np.mean(np.array(statistics) >= test.statistic), abs=0.08)
    assert inference.homogeneity(fit, how) == test  # the seed decides


@pytest.mark.parametrize("correction", ["bartlett", "bootstrap"])
def test_small_samples_that_hardly_overlap_are_tested(correction: str) -> None:
    """The fit is far from its permuted replicates, which are near zero."""
    samples = [np.linspace(low, high, 25) for low, high in ((37, 67), (28, 39), (32, 48), (44, 74))]
    fit = DensityRatioModel().fit(samples)
    test = inference.homogeneity(fit, Testing(correction=correction))
    assert test.factor == pytest.approx(1, abs=0.2)
    assert test.p_value < 0.01
    assert inference.equality(fit, ["1", "2"], Testing(correction=correction)).p_value < 0.02


def test_auto_corrects_small_samples_only() -> None:
    small, large = DensityRatioModel().fit(three(0, (59, 90, 90))), DensityRatioModel().fit(three(0, (60, 90, 90)))
    assert Testing().resolved(small).correction == "bartlett"
    assert Testing("wald").resolved(small).correction == "bootstrap"
    assert Testing().resolved(large).correction == "none"
    assert Testing(correction="bootstrap").resolved(large).correction == "bootstrap"


@pytest.mark.slow
def test_the_correction_keeps_the_size_in_small_samples() -> None:
    """At n = 30 the uncorrected test rejects 6.9 % of equal populations."""
    rng = np.random.default_rng(8)
    hits = [
        inference.homogeneity(DensityRatioModel().fit([rng.normal(0, 1, 30) for _ in range(3)])).p_value < 0.05
        for _ in range(500)
    ]
    assert plausible(np.array(hits, dtype=float), 0.05)


def test_only_equal_populations_are_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any other hypothesis, observations of different populations may not be exchanged."""
    fit, how = DensityRatioModel().fit(three(7)), Testing(correction="bootstrap", replicates=20)
    asked: list[str] = []
    for name in ("permutations", "draws"):
        real = getattr(hypothesis_tests, name)
        monkeypatch.setattr(
            hypothesis_tests, name, lambda *given, name=name, real=real: asked.append(name) or real(*given)
        )
    for null in (None, np.zeros(4), np.eye(4)[0]):
        inference.linear_hypothesis(fit, np.eye(4), null, how)
    inference.linear_hypothesis(fit, np.eye(4)[:3], how=how)
    assert asked == ["permutations", "permutations", "draws", "draws"]


def test_what_cannot_be_tested_is_refused() -> None:
    with refused("no fit under the hypothesis", "too far from it"):
        inference.linear_hypothesis(DensityRatioModel("identity").fit(three()), np.eye(2)[:1], [1000.0], NONE)
    fit = DensityRatioModel().fit(three())
    with refused("fit with ridge=0"):
        inference.homogeneity(DensityRatioModel(ridge=1.0).fit(three()))
    with refused("no term 'x^3' (there are: x, x^2)"):
        inference.without_terms(fit, ["x^3"])
    with refused("no terms to test"):
        inference.without_terms(fit, [])
    with refused("no population 'z'"):
        inference.equality(fit, ["a", "z"])
    with refused("give two populations or more"):
        inference.equality(fit, ["a"])
    with refused("independent rows of 4 numbers"):
        inference.linear_hypothesis(fit, [[1, 0, 0]])
    with refused("independent rows of 4 numbers"):
        inference.linear_hypothesis(fit, [[1, 0, 0, 0], [2, 0, 0, 0]])
    with refused("unknown correction 'bartlet'; did you mean 'bartlett'?"):
        Testing(correction="bartlet")
    with refused("unknown statistic 'score'"):
        Testing("score")
    with refused("3 bootstrap samples are too few"):
        Testing(replicates=3)


@pytest.mark.parametrize(("basis", "far"), [("normal", 1e6), ("polynomial(3)", 1e4)])
@pytest.mark.parametrize("how", [NONE, WALD])
def test_samples_far_from_zero_have_the_tests_of_those_near_it(basis: str, far: float, how: Testing) -> None:
    near = {name: np.round(x * 1024) / 1024 for name, x in three().items()}  # moved without rounding
    moved = DensityRatioModel(basis).fit({name: x + far for name, x in near.items()})
    fit = DensityRatioModel(basis).fit(near)
    for test in (inference.homogeneity, lambda fit, how: inference.equality(fit, ["a", "c"], how)):
        assert test(moved, how).statistic == pytest.approx(test(fit, how).statistic, rel=1e-4)


def test_a_hypothesis_on_values_does_not_depend_on_the_units_of_its_rows() -> None:
    fit = DensityRatioModel().fit(three())
    matrix, value = np.array([[1.0, 0, 0, 0], [0, 1, 0, -1]]), np.array([0.2, 0.1])
    plain = inference.linear_hypothesis(fit, matrix, value, NONE)
    mixed = np.array([[1e6, 0.0], [1.0, 1e-3]])
    assert inference.linear_hypothesis(fit, mixed @ matrix, mixed @ value, NONE).statistic == pytest.approx(
        plain.statistic, rel=1e-6
    )
