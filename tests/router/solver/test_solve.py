"""The exact fit reaches the pooled optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.lbfgs import first_state
from feddrm.router.solver.problem import Problem, add
from feddrm.router.solver.solve import moments_of, pooled, scaler_of, solve
from refusal import refused

from .made import accuracy_at, clients_with_overlap, pooled_optimum


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("ridge", [1e-4, 1e-2])
def test_the_federated_optimum_is_the_pooled_one(ridge: float, whitened: bool) -> None:
    samples = clients_with_overlap()
    problem = Problem(4, 12, ridge)
    fit = solve(
        problem, samples, moments_of([s.x for s in samples]) if whitened else None, rounds=2000, tolerance=1e-14
    )
    loss, point = pooled_optimum(problem, samples)
    assert fit.converged
    assert abs(fit.loss - loss) < 1e-8
    assert (fit.point - fit.point.mean(0) - (point - point.mean(0))).abs().max() < 1e-5


def test_it_agrees_with_scikit_learn() -> None:
    samples = clients_with_overlap()
    everyone = pooled(samples)
    fit = solve(Problem(4, 12, 1e-3), samples, moments_of([s.x for s in samples]), rounds=500, tolerance=1e-14)
    theirs = LogisticRegression(C=1 / (1e-3 * len(everyone)), tol=1e-10, max_iter=5000).fit(everyone.x, everyone.y)
    expected = torch.from_numpy(np.column_stack([theirs.coef_, theirs.intercept_]))
    assert (fit.point - fit.point.mean(0) - (expected - expected.mean(0))).abs().max() < 1e-5


def test_coupled_outputs_offsets_and_ridge_on_the_bias() -> None:
    samples = clients_with_overlap()
    g = torch.Generator().manual_seed(5)
    samples = [Sample(s.x, s.y, torch.randn(len(s), 4, generator=g, dtype=torch.float64)) for s in samples]
    a = torch.randn(4, 4, generator=g, dtype=torch.float64)
    problem = Problem(4, 12, 1e-2, 1e-3, a @ a.T + torch.eye(4, dtype=torch.float64))
    fit = solve(problem, samples, moments_of([s.x for s in samples]), rounds=500, tolerance=1e-14)
    loss, point = pooled_optimum(problem, samples)
    assert abs(fit.loss - loss) < 1e-8
    assert (fit.point - point).abs().max() < 1e-5


def test_round_zero_is_the_linear_discriminant() -> None:
    """The first step must already be right where a discriminant is: Gaussians with one covariance."""
    g = torch.Generator().manual_seed(0)
    means = torch.randn(3, 6, generator=g, dtype=torch.float64)
    raw = [torch.randn(4000, 6, generator=g, dtype=torch.float64) + mean for mean in means]
    scaler = scaler_of(raw)
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]
    problem, whitening = Problem(3, 6, 1e-6), moments_of([s.x for s in samples])
    seen: list[float] = []
    solve(problem, samples, whitening, rounds=30, watch=lambda s: seen.append(accuracy_at(samples, s.iterate)))
    assert seen[1] > seen[-1] - 0.002  # after one step
    assert seen[1] > 0.8


def test_few_rounds_suffice_when_whitened() -> None:
    samples = clients_with_overlap(features=40, sizes=(400, 700, 500, 300))
    problem = Problem(4, 40, 1e-3)
    seen: list[float] = []
    solve(
        problem,
        samples,
        moments_of([s.x for s in samples]),
        rounds=200,
        tolerance=1e-12,
        watch=lambda s: seen.append(accuracy_at(samples, s.iterate)),
    )
    assert min(seen[14:]) > seen[-1] - 0.003


def test_single_precision_reaches_the_same_decisions() -> None:
    samples = clients_with_overlap()
    single = [Sample(s.x.float(), s.y) for s in samples]
    fit = solve(Problem(4, 12, 1e-3), samples, moments_of([s.x for s in samples]), rounds=200, tolerance=1e-10)
    other = solve(Problem(4, 12, 1e-3), single, moments_of([s.x for s in single]), rounds=200, tolerance=1e-7)
    assert other.converged
    assert abs(fit.loss - other.loss) < 1e-5


def test_refusals() -> None:
    with refused("1 outputs", "at least two"):
        first_state(Problem(1, 3, 0.1), 2)
    with refused("ridge=-1"):
        first_state(Problem(2, 3, -1), 2)
    with refused("no client answered"):
        add([])
    with refused("rounds=0"):
        solve(Problem(4, 12, 0.1), clients_with_overlap(), rounds=0)


def test_a_warm_start_is_not_taken_for_the_end() -> None:
    """Where clients lie far apart the loss is almost flat: by the curvature at zero any point is the optimum."""
    g = torch.Generator().manual_seed(4)
    raw = []
    for _ in range(8):
        centre = 2 * torch.randn(60, generator=g, dtype=torch.float64)
        raw.append(centre + torch.randn(30, 60, generator=g, dtype=torch.float64))
    scaler = scaler_of(raw)
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]
    whitening = moments_of([s.x for s in samples])
    strong = solve(Problem(8, 60, 3e-4), samples, whitening, rounds=300, tolerance=1e-9)
    weak = Problem(8, 60, 1e-4)
    fit = solve(weak, samples, whitening, start=strong.point, rounds=300, tolerance=1e-6)
    best, _ = pooled_optimum(weak, samples)
    assert fit.converged
    assert fit.loss - best < 5e-6


def test_the_whitening_of_clients_is_that_of_their_pooled_rows_and_leaves_them_unchanged() -> None:
    rows = [sample.x for sample in clients_with_overlap()]
    before = [x.clone() for x in rows]
    apart, together = moments_of(rows), moments_of([torch.cat(rows)])
    assert torch.allclose(apart.values, together.values, rtol=1e-12, atol=0)
    assert all(map(torch.equal, rows, before))
