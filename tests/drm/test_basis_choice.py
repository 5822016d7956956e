"""Tests of the choice of a basis: the true family wins, candidates that are not defined are left out."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.drm import DensityRatioModel, choose_basis
from feddrm.drm.basis import evaluate_basis
from feddrm.drm.logistic import log_softmax
from populations import three
from refusal import refused


@pytest.mark.parametrize(
    ("family", "samples"),
    [
        ("normal", lambda rng: [rng.normal(0, 1, 1500), rng.normal(0.2, 1.5, 1500)]),
        ("lognormal", lambda rng: [np.exp(rng.normal(0, 1, 1500)), np.exp(rng.normal(0.3, 0.6, 1500))]),
        ("beta", lambda rng: [rng.beta(2, 5, 1500), rng.beta(5, 1.2, 1500)]),
    ],
)
def test_the_true_family_wins(family: str, samples: object) -> None:
    drawn = samples(np.random.default_rng(1))  # type: ignore[operator]
    assert choose_basis(drawn).name == family
    fit = DensityRatioModel("auto").fit(drawn)
    assert fit.model.basis == family
    assert fit.choice is not None
    assert fit.choice.scores[family] == max(fit.choice.scores.values())


def test_a_score_is_the_mean_held_out_log_likelihood() -> None:
    samples = list(three().values())
    score = choose_basis(samples, ["identity"], seed=3).scores["identity"]
    rng = np.random.default_rng(3)
    folds = [rng.permutation(np.arange(len(x)) % 5) for x in samples]
    total = 0.0
    for fold in range(5):
        fit = DensityRatioModel("identity").fit([x[f != fold] for x, f in zip(samples, folds, strict=True)])
        for i, (x, f) in enumerate(zip(samples, folds, strict=True)):
            z = np.column_stack([np.ones((f == fold).sum()), evaluate_basis("identity", x[f == fold])])
            total += log_softmax(z @ np.vstack([fit.gamma_ddagger, fit.xi.T]))[:, i].sum()
    assert score == pytest.approx(total / 250, abs=1e-9)


def test_what_is_not_defined_is_left_out() -> None:
    assert set(choose_basis(list(three().values())).scores) == {"identity", "normal", "polynomial(3)"}
    with refused("no basis can be chosen for these samples: name one", "takes logarithms"):
        choose_basis(list(three().values()), ["gamma"])
