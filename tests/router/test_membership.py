"""Clients join and leave a router."""

from __future__ import annotations

import pytest
import torch

from feddrm.router import Router, join, leave
from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.problem import Problem
from feddrm.router.solver.solve import moments_of, scaler_of, solve
from refusal import refused


def test_leaving_is_exact(router: Router, images: torch.Tensor) -> None:
    without = leave(router, "lima")
    assert without.names == ("oslo", "kyoto")
    assert torch.allclose(
        without.route(images).probabilities,
        router.route(images, available=["oslo", "kyoto"]).probabilities[:, [0, 2]],
        atol=1e-6,
    )
    assert torch.allclose(without.log_prior.exp(), torch.tensor([5 / 7, 2 / 7]))
    with refused("unknown client 'rome'"):
        leave(router, "rome")
    with refused("one client alone"):
        leave(without, "oslo")


@pytest.mark.parametrize("newcomer", [40, 200])
def test_joining_ends_where_a_fit_from_nothing_does_and_sooner(newcomer: int) -> None:
    g = torch.Generator().manual_seed(1)
    raw = [
        torch.randn(n, 8, generator=g, dtype=torch.float64) + torch.randn(8, generator=g, dtype=torch.float64)
        for n in (120, 80, newcomer)
    ]
    scaler = scaler_of(raw[:2])
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]
    before = solve(
        Problem(2, 8, 1e-3), samples[:2], moments_of([s.x for s in samples[:2]]), rounds=300, tolerance=1e-13
    )
    problem, whitening = Problem(3, 8, 1e-3), moments_of([s.x for s in samples])
    joined = join(before.point, problem, samples, whitening, rounds=300, tolerance=1e-13)
    refit = solve(problem, samples, whitening, rounds=300, tolerance=1e-13)
    assert joined.converged
    assert (joined.point - refit.point).abs().max() < 1e-4
    assert abs(joined.loss - refit.loss) < 1e-9
