"""Tests of federated averaging on fixed embeddings: gradients, drift, smoothness, and errata of the paper's proof."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from feddrm.drm.basis import Floats
from feddrm.paper.experiments.descent import Head
from feddrm.paper.experiments.drift import random_federation
from feddrm.paper.experiments.tradeoff import World


def heads() -> tuple[Head, Head, Floats, Floats]:
    x, label, client = random_federation("skewed", "shifted", 0, samples=60)
    client[:20] = 1  # unequal sizes
    rng = np.random.default_rng(3)
    first, second = Head.of(x, client, client, 3), Head.of(x, label, client, 10)
    return first, second, rng.normal(size=first.start().shape), rng.normal(size=second.start().shape)


@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9])
def test_10_drift_splits_into_the_two_heads(lam: float) -> None:
    """``G^2 = (1 - lambda)^2 G_client^2 + lambda^2 G_class^2``, the joint gradient written out."""
    client, label, gamma_weights, beta = heads()
    each = [
        np.concatenate([(1 - lam) * a.ravel(), lam * b.ravel()])
        for a, b in zip(client.gradients(gamma_weights[None]), label.gradients(beta[None]), strict=True)
    ]
    mean = np.average(each, axis=0, weights=client.client_weights)
    joint = float(sum(w * ((g - mean) ** 2).sum() for w, g in zip(client.client_weights, each, strict=True)))
    split = (1 - lam) ** 2 * client.drift(gamma_weights) + lam**2 * label.drift(beta)
    assert joint == pytest.approx(float(split), rel=1e-12)


def test_10_gradients_are_those_of_the_cross_entropy() -> None:
    """Erratum: d loss_i / d gamma_k is the mean of ``p_k - 1(i = k)``: the other sign, and no factor x."""
    client, _, weights, _ = heads()

    def loss(i: int, w: Floats) -> float:
        logs = log_softmax(client.features[i] @ w.T, axis=1)
        return float(-(logs[:, i] * client.share[i]).sum())

    for i in range(3):
        for k in range(3):
            step = np.zeros_like(weights)
            step[k, 0] = 1e-5  # the intercept, gamma_k
            slope = (loss(i, weights + step) - loss(i, weights - step)) / 2e-5
            p = softmax(client.features[i] @ weights.T, axis=1)[:, k]
            assert slope == pytest.approx(float(((p - (i == k)) * client.share[i]).sum()), abs=1e-8)
            assert slope == pytest.approx(float(client.gradients(weights[None])[i, k, 0]), abs=1e-8)


def test_11_the_smoothness_is_never_exceeded_and_reached_by_two_even_outcomes() -> None:
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    head = Head.of(x, rng.integers(0, 2, 40), np.repeat([0, 1], 20), 2)

    def steepest(weights: Floats) -> float:
        columns = []
        for step in np.eye(6).reshape(6, 2, 3) * 1e-5:
            columns.append((head.gradients((weights + step)[None]) - head.gradients((weights - step)[None])) / 2e-5)
        each = np.stack(columns, axis=1).reshape(2, 6, 6)
        return float(max(np.linalg.eigvalsh((h + h.T) / 2).max() for h in each))

    assert steepest(head.start()) == pytest.approx(head.smoothness(), rel=1e-6)
    assert steepest(rng.normal(size=(2, 3))) < head.smoothness()


def test_erratum_inner_weight_of_the_drift() -> None:
    """Printed with n_i for n_l, the inner sum is no mean: it counts client i's share for every client."""
    client, _, weights, _ = heads()
    each = client.gradients(weights[None])
    w = client.client_weights
    assert np.ptp(w) > 0
    meant = sum(w[i] * ((each[i] - client.average(each)) ** 2).sum() for i in range(3))
    printed = sum(w[i] * ((each[i] - w[i] * each.sum(0)) ** 2).sum() for i in range(3))
    assert client.drift(weights) == pytest.approx(float(meant), rel=1e-12)
    assert printed != pytest.approx(float(meant), rel=1e-3)


def test_erratum_the_contraction_proof_drops_a_cross_term() -> None:
    """``||a + b||^2 <= ||a||^2 + ||b||^2`` fails at clients; the chain before it needs a smaller rate too."""
    world = World.draw(300, 0, 0)
    ridge = 0.05
    head = Head.of(world.x, world.client, world.client, 3)
    smooth = head.smoothness() + ridge
    rate = 1 / smooth
    optimum = world.minimisers(0.0001, ridge)[0]
    point = optimum + 0.01 * np.random.default_rng(0).normal(size=optimum.shape)
    pooled = head.gradient(point)
    fails: list[bool] = []
    for own in head.gradients(point[None]):
        after = ((point - rate * (own + ridge * point) - optimum) ** 2).sum()
        claimed = (1 - rate * ridge) * ((point - optimum) ** 2).sum() + rate**2 * ((pooled - own) ** 2).sum()
        fails.append(bool(after > claimed))
    assert any(fails)
    assert 1 - 2 * rate * ridge + rate**2 * smooth**2 > 1 - rate * ridge  # the printed chain at the rate 1 / L
    small = ridge / smooth**2
    assert 1 - 2 * small * ridge + small**2 * smooth**2 <= 1 - small * ridge + 1e-15
