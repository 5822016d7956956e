"""Tests of many fits at once: they equal single fits, and bootstrap errors equal the formula's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.inference import resampling
from feddrm.drm.inference.resampling import draws, own_shares, permutations, refit, start_of
from populations import three
from refusal import refused


def test_every_replicate_equals_a_fit_of_its_own() -> None:
    fit = DensityRatioModel().fit(three())
    counts = next(draws(fit, own_shares(fit), 6, seed=1))
    refits = refit(fit.design, counts, start_of(fit))
    assert refits.counts.shape == counts.shape
    weights = refits.weights(fit.design)
    x = fit.values[:, 0]
    for r in range(6):
        samples = [np.repeat(x, counts[i, :, r].astype(int)) for i in range(3)]
        assert [len(s) for s in samples] == fit.counts.tolist()
        single = DensityRatioModel().fit(samples)
        assert refits.log_likelihood[r] == pytest.approx(single.log_likelihood, abs=1e-6)
        coefficients = refits.coefficients[r].reshape(2, 3) @ fit.whitening.back.T
        np.testing.assert_allclose(coefficients[:, 1:], single.xi[1:], atol=1e-5)
        np.testing.assert_allclose(x @ weights[:, :, r].T, inference.mean(single).value[:, 0], atol=1e-5)


def test_permutations_exchange_the_pooled_sample() -> None:
    fit = DensityRatioModel().fit(three())
    (counts,) = permutations(fit, 5, seed=0)
    np.testing.assert_array_equal(counts.sum(0), 1)
    np.testing.assert_array_equal(counts.sum(1), np.repeat(fit.counts[:, None], 5, axis=1))
    assert (counts[:, :, 0] != counts[:, :, 1]).any()


def test_large_samples_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = DensityRatioModel().fit(three())
    monkeypatch.setattr(resampling, "MOST_CELLS", 3 * len(fit.owner))
    assert [counts.shape[2] for counts in draws(fit, fit.weights, 7, seed=0)] == [3, 3, 1]


def test_bootstrap_errors_agree_with_the_formula() -> None:
    fit = DensityRatioModel().fit(three())
    x = fit.values[:, 0]
    drawn = inference.bootstrap(fit, lambda weights: weights.T @ x, 600)
    formula = inference.mean(fit)
    np.testing.assert_allclose(drawn.error, formula.error[:, 0], rtol=0.12)
    low, high = drawn.interval()
    np.testing.assert_allclose(low, formula.interval()[0][:, 0], atol=0.4 * formula.error[:, 0].max())
    np.testing.assert_allclose(high, formula.interval()[1][:, 0], atol=0.4 * formula.error[:, 0].max())
    narrow = drawn.interval(0.5)
    assert (narrow[0] > low).all()
    assert (narrow[1] < high).all()


def test_what_cannot_be_resampled_is_refused() -> None:
    with refused("fit with ridge=0"):
        inference.bootstrap(DensityRatioModel(ridge=1.0).fit(three()), lambda weights: 0.0)
    fit = DensityRatioModel().fit(three())
    with refused("5 bootstrap samples are too few"):
        inference.bootstrap(fit, lambda weights: 0.0, replicates=5)
    with refused("confidence 2"):
        inference.bootstrap(fit, lambda weights: 0.0, replicates=20).interval(2)
    nearly = DensityRatioModel("identity").fit([[0.0, 1.0, 2.0, 3.2], [3.0, 4.0, 5.0, 6.0]])
    with refused("bootstrap samples the basis separates populations"):
        inference.bootstrap(nearly, lambda weights: 0.0, replicates=50)


@pytest.mark.parametrize("largest", [3.0, 900.0])
def test_posteriors_are_those_of_a_softmax_however_large_the_logits(largest: float) -> None:
    eta = np.array([[largest, -2.0, 1.0], [largest - 1, -3.0, 0.0]])[:, :, None]
    whole = np.concatenate([np.zeros((1, 3, 1)), eta])  # the first population's are zero
    log_total, posterior = resampling._posterior(eta)
    np.testing.assert_allclose(log_total, logsumexp(whole, axis=0), rtol=1e-14)
    np.testing.assert_allclose(posterior, softmax(whole, axis=0)[1:], rtol=1e-14)
