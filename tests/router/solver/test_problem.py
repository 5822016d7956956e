"""Standardisation from sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.router.solver.client_statistics import Sample, client_sums
from feddrm.router.solver.problem import Problem, Scaler, add
from feddrm.router.solver.solve import moments_of, solve
from refusal import refused


@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(0, 100))
def test_standardisation_is_that_of_the_pooled_data(sizes: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    parts = [3 + 2 * torch.randn(size, 3, generator=g, dtype=torch.float64) for size in sizes]
    scaler = Scaler.of(add([client_sums(part) for part in parts]))
    everyone = torch.cat(parts)
    assert torch.allclose(scaler.mean, everyone.mean(0))
    assert torch.allclose(scaler.scale, everyone.std(0, correction=0), atol=1e-6)


def test_the_sums_of_many_clients_are_taken_from_an_iterator() -> None:
    total = add({"a": torch.tensor(float(i)), "b": torch.full((2,), float(i))} for i in range(250))
    assert total["a"] == sum(range(250))
    assert total["b"].tolist() == [sum(range(250))] * 2
    with refused("no client answered"):
        add(iter(()))


def test_a_feature_that_never_varies_is_harmless() -> None:
    x = torch.full((50, 2), 7.3)
    x[:, 1] = torch.arange(50)
    scaled = Scaler.of(client_sums(x))(x)
    assert scaled[:, 0].abs().max() < 1e-5
    samples = [
        Sample(scaled[:25], torch.zeros(25, dtype=torch.int64)),
        Sample(scaled[25:], torch.ones(25, dtype=torch.int64)),
    ]
    assert solve(Problem(2, 2, 1e-2), samples, moments_of([s.x for s in samples])).point.isfinite().all()


@pytest.mark.parametrize(("mean", "deviation"), [(37.0, 1e-4), (2.46e6, 20.0), (1.7e9, 1e4), (1e-3, 1e-3)])
def test_a_feature_that_varies_little_beside_its_mean_is_scaled(mean: float, deviation: float) -> None:
    """Latitudes of one town, Julian days, seconds since 1970: in float32 their variation is no rounding."""
    noise = torch.randn(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (mean + deviation * noise).float()
    scale = float(Scaler.of(client_sums(x)).scale)
    assert scale == pytest.approx(float(x.double().std(correction=0)), rel=0.01)
