"""Tests of the lambda trade-off: FedAvg's floor, the theorem's bound, and the effect of a ridge."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from feddrm.drm import (
    DensityRatioModel,
)
from feddrm.drm.basis import Floats
from feddrm.drm.logistic import information
from feddrm.paper.experiments.drift import measure_drift
from feddrm.paper.experiments.tradeoff import World, tradeoff_experiment
from refusal import refused

pytestmark = pytest.mark.slow


def test_11_fedavg_ends_nearer_the_optimum_the_larger_lambda() -> None:
    """The floor falls with lambda and stays below the theorem's bound, which is loose."""
    result = tradeoff_experiment(rounds=60, size=300, worlds=1)
    assert (np.diff(result.floor) < 0).all()
    assert result.floor[0] > 10 * result.floor[-1]
    assert (result.floor < result.bound).all()
    assert (result.drift_client > result.drift_class).all()


def test_11_the_bound_is_the_theorems() -> None:
    """``eta^2 E^2 G^2 / (1 - (1 - eta mu)^E)`` with mu the ridge and eta = 1 / (4 L E)."""
    result = tradeoff_experiment(rounds=2, local_steps=3, ridge=0.1, size=200, worlds=1)
    world = World.draw(200, 0, 0)
    moments = [world.x[world.client == i] for i in range(3)]
    steepest = max(np.linalg.eigvalsh(x.T @ x / len(x)).max() for x in moments) / 2
    for i, lam in enumerate(result.lambdas):
        eta = 1 / (4 * (steepest * max(lam, 1 - lam) + 0.1) * 3)
        drift = (1 - lam) ** 2 * result.drift_client[i] + lam**2 * result.drift_class[i]
        assert result.bound[i] == pytest.approx(9 * eta**2 * drift / (1 - (1 - 0.1 * eta) ** 3), rel=1e-12)


def joint_minimiser(world: World, lam: float, ridge: float) -> Floats:
    """Both heads at once by a general-purpose solver; rows centred, since only differences matter at ridge 0."""
    shapes = (world.true_client.shape, world.true_class.shape)
    cut = shapes[0][0] * shapes[0][1]
    targets = [np.eye(s[0])[o] for s, o in zip(shapes, (world.client, world.label), strict=True)]

    def loss(zeta: Floats) -> tuple[float, Floats]:
        value, slope = 0.5 * ridge * float(zeta @ zeta), ridge * zeta
        for part, shape, target, share in zip(
            (slice(0, cut), slice(cut, None)), shapes, targets, (1 - lam, lam), strict=True
        ):
            logs = log_softmax(world.x @ zeta[part].reshape(shape).T, axis=1)
            value -= share * float((target * logs).sum()) / len(world.x)
            slope[part] += share * ((np.exp(logs) - target).T @ world.x).ravel() / len(world.x)
        return value, slope

    options = {"maxiter": 20_000, "maxfun": 50_000, "gtol": 1e-11, "ftol": 0.0, "maxcor": 50}
    found = minimize(loss, np.zeros(cut + shapes[1][0] * shapes[1][1]), jac=True, method="L-BFGS-B", options=options).x
    parts = found[:cut].reshape(shapes[0]), found[cut:].reshape(shapes[1])
    return np.concatenate([(part - part.mean(0)).ravel() for part in parts])


def test_12_without_a_ridge_the_optimum_does_not_depend_on_lambda() -> None:
    """Erratum: the blocks separate, so the lemma's variance ``((1 - lambda) I)^-1`` cannot be right."""
    world = World.draw(500, 0, 0)
    base = joint_minimiser(world, 0.5, 0.0)
    for lam in (0.1, 0.9):
        np.testing.assert_allclose(joint_minimiser(world, lam, 0.0), base, atol=2e-6)
    exact = np.concatenate([part.ravel() for part in world.minimisers(0.5, 0.0)])
    np.testing.assert_allclose(exact, base, atol=2e-6)


def test_12_with_a_ridge_lambda_matters_through_bias() -> None:
    world = World.draw(500, 0, 0)
    ends = [joint_minimiser(world, lam, 0.01) for lam in (0.1, 0.9)]
    assert np.abs(ends[0] - ends[1]).max() > 0.1
    for lam, joint in zip((0.1, 0.9), ends, strict=True):
        exact = np.concatenate([part.ravel() for part in world.minimisers(lam, 0.01)])
        np.testing.assert_allclose(exact, joint, atol=1e-6)


def test_12_the_bias_of_a_fixed_ridge_stays_as_data_grow() -> None:
    worlds = [World.draw(size, 0, 1) for size in (2_000, 50_000)]
    plain, held = (
        [float(((w.minimisers(0.9, ridge)[0] - w.true_client) ** 2).sum()) for w in worlds] for ridge in (0.0, 0.05)
    )
    assert plain[1] < plain[0] / 3
    assert held[1] > 0.8 * held[0]
    assert held[1] > 100 * plain[1]


def test_12_the_sandwich_of_a_weighted_loss_is_free_of_the_weight() -> None:
    """Variance over many data sets equals the inverse information, not that divided by 1 - lambda."""
    squares = []
    for number in range(150):
        world = World.draw(500, 4, number)
        fit = DensityRatioModel("identity").fit([world.x[world.client == i, 1:] for i in range(3)])
        found = np.column_stack([fit.gamma_ddagger, fit.xi])
        squares.append(((found - found.mean(0) - world.true_client) ** 2).sum())
    world = World.draw(20_000, 4, 0)
    inverse_information = world.lemma_variance()[0] * 20_000 / 500
    assert np.mean(squares) == pytest.approx(inverse_information, rel=0.25)
    assert np.mean(squares) < inverse_information / (1 - 0.9) / 5


def test_12_the_information_of_an_overparameterised_softmax_is_singular() -> None:
    """Erratum: the smallest eigenvalue that the theorem divides by is zero at ridge 0."""
    world = World.draw(300, 0, 0)
    p = softmax(world.x @ world.true_client.T, axis=1)
    full = np.einsum("nab,nk,nl->akbl", p[:, :, None] * (np.eye(3) - p[:, None, :]), world.x, world.x)
    size = 3 * world.x.shape[1]
    assert np.linalg.eigvalsh(full.reshape(size, size))[0] == pytest.approx(0, abs=1e-9)
    reduced = information(world.x, p, np.zeros((world.x.shape[1],) * 2))
    assert np.linalg.eigvalsh(reduced)[0] > 1


def test_impossible_experiments_are_refused() -> None:
    with refused("size at least 200"):
        tradeoff_experiment(size=10)
    with refused("give iid/skewed"):
        measure_drift("sorted", "shifted")
