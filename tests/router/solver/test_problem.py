"""Standardisation from sums."""

from __future__ import annotations

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
