"""Clients join and leave a router."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from feddrm.data import Federation
from feddrm.moments.score_test import SampleMoments
from feddrm.router import Router, RouterSettings, fit_router, join_client, leave
from feddrm.router.features.decorrelated_inputs import SHRINKAGE
from feddrm.router.membership import joined_start
from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.problem import Problem
from feddrm.router.solver.solve import moments_of, scaler_of, solve
from refusal import refused


def test_leaving_is_exact(router: Router, images: torch.Tensor) -> None:
    without = leave(router, "lima")
    assert without.names == ("oslo", "kyoto")
    kept = router.route(images).probabilities[:, [0, 2]]
    assert torch.allclose(without.route(images).probabilities, kept / kept.sum(1, keepdim=True), atol=1e-6)
    assert torch.allclose(without.log_prior.exp(), torch.tensor([5 / 7, 2 / 7]))
    kept_right = router.route(images, rule="competence").right
    assert kept_right is not None
    assert torch.equal(without.route(images, rule="competence").right, kept_right[:, [0, 2]])
    assert torch.equal(without.means, router.means[[0, 2]])
    reference = SampleMoments.of(np.random.default_rng(0).normal(size=(30, 3)))
    old = replace(router, calibration=replace(router.calibration, reference=reference), competence=None, means=None)
    assert leave(old, "lima").calibration == replace(router.calibration, reference=None), "its samples are in the other"
    assert (leave(old, "lima").competence, leave(old, "lima").means) == (None, None)
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
    start = joined_start(before.point, [len(sample) for sample in samples])
    joined = solve(problem, samples, whitening, start=start, rounds=300, tolerance=1e-13)
    refit = solve(problem, samples, whitening, rounds=300, tolerance=1e-13)
    assert joined.converged
    assert (joined.point - refit.point).abs().max() < 1e-4
    assert abs(joined.loss - refit.loss) < 1e-9


def made_rows(names: tuple[str, ...], samples: int = 60) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Clients whose rows differ in their means."""
    g = torch.Generator().manual_seed(2)
    means = 0.8 * torch.randn(4, 6, generator=g)
    return {
        name: (torch.randn(samples + 20 * i, 6, generator=g) + means[i], torch.arange(samples + 20 * i) % 2)
        for i, name in enumerate(names)
    }


def test_a_client_that_joined_is_routed_as_by_a_fit_of_all_clients() -> None:
    rows = made_rows(("oslo", "lima", "kyoto", "quito"))
    settings = RouterSettings(features="raw", heads=False, rounds=300, tolerance=1e-12)
    three = Federation.from_arrays({name: rows[name] for name in ("oslo", "lima", "kyoto")}, seed=1)
    four = Federation.from_arrays(rows, seed=1)
    before = fit_router(None, {}, three, settings)
    ridge = before.chosen["router"]["ridge"]
    joined = join_client(before.router, four, ridge, settings)
    assert joined.names == four.names
    assert torch.equal(joined.scaler.mean, before.router.scaler.mean), "features keep their scale"
    samples = [Sample(joined.scaler(c.train.x), torch.full((len(c.train),), i)) for i, c in enumerate(four.clients)]
    whitening = moments_of([s.x for s in samples])
    refit = solve(Problem(4, 6, ridge), samples, whitening, rounds=300, tolerance=1e-12)
    torch.testing.assert_close(joined.weight, refit.point[:, :-1].float(), rtol=0, atol=2e-3)
    queries = torch.cat([c.test.x for c in four.clients])
    logits = joined.scaler(queries).double() @ refit.point[:, :-1].T + refit.point[:, -1]
    same = joined.route(queries, rule="posterior").probabilities.argmax(1) == logits.argmax(1)
    assert same.double().mean() > 0.98
    assert joined.calibration.temperature != before.router.calibration.temperature
    assert (joined.calibration.reference, joined.competence) == (None, None)
    torch.testing.assert_close(joined.means, torch.stack([sample.x.mean(0) for sample in samples]))
    assert joined.decorrelated is not None
    together = torch.cat([sample.x for sample in samples]).double()
    moments = together.T @ together / len(together)
    spread = torch.linalg.eigvalsh(moments)
    usual = (spread / (spread + SHRINKAGE * moments.diagonal().max())).mean()
    strangeness = joined.decorrelated.squares(together).sum(1).mean()
    assert float(strangeness) == pytest.approx(float(usual), rel=1e-5), "the new client's rows are in it"
    with refused("oslo, lima, kyoto", "the new one last"):
        join_client(before.router, three, ridge)
