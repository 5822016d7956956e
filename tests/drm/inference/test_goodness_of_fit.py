"""Tests of goodness of fit: the distance from its definition, p-values that are right, wrong bases that are found."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from feddrm.drm import DensityRatioModel, inference
from refusal import refused


def test_the_distance_from_its_definition() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, 9, 40).astype(float), rng.integers(2, 12, 30).astype(float)]  # with ties
    fit = DensityRatioModel("identity").fit(samples)
    x = fit.values[:, 0]
    wanted = []
    for i, n in enumerate((40, 30)):
        total = 0.0
        for point in np.unique(x):
            gap = fit.weights[x <= point, i].sum() - (samples[i] <= point).mean()
            height = ((x <= point).sum() - 0.5) / 70
            total += (x == point).mean() * gap**2 / (height * (1 - height))
        wanted.append(n * total)
    found = inference.goodness_of_fit(fit, 20)
    assert found.statistic == pytest.approx(sum(wanted))
    assert found.population == fit.names[int(np.argmax(wanted))]
    assert found == inference.goodness_of_fit(fit, 20)


def test_a_wrong_basis_is_found() -> None:
    rng = np.random.default_rng(1)
    samples = [np.exp(rng.normal(m, 1, 400)) for m in (0.0, 0.5, 1.0)]
    wrong = inference.goodness_of_fit(DensityRatioModel("normal").fit(samples), 199)
    assert wrong.p_value == 0.005
    assert wrong.doubtful
    assert "basis normal fits population" in wrong.warning("normal")
    assert not inference.goodness_of_fit(DensityRatioModel("lognormal").fit(samples), 99).doubtful


@pytest.mark.slow
def test_a_right_basis_is_doubted_in_5_percent() -> None:
    rng = np.random.default_rng(2)
    doubted = [
        inference.goodness_of_fit(DensityRatioModel().fit([rng.normal(0, 1, 60), rng.normal(0.5, 1.2, 60)]), 39).p_value
        < 0.05
        for _ in range(300)
    ]
    low, high = binom.interval(0.999, 300, 0.05)
    assert low <= sum(doubted) <= high


def test_a_ridge_is_refused() -> None:
    rng = np.random.default_rng(3)
    with refused("goodness of fit", "fit with ridge=0"):
        inference.goodness_of_fit(DensityRatioModel(ridge=1.0).fit([rng.normal(size=9), rng.normal(size=9)]))


def test_replicates_that_tell_nothing_are_refused() -> None:
    fit = DensityRatioModel("identity").fit([[0.0, 1, 2, 3.1], [3.0, 4, 5, 6]])
    with refused("19 bootstrap samples are too few: give at least 20"):
        inference.goodness_of_fit(fit, replicates=19)
    with refused(
        "of 20 bootstrap samples the basis separates populations"
    ):  # one observation of each is among the other
        inference.goodness_of_fit(fit, replicates=20)
