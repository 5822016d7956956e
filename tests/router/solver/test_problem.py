"""Standardisation from sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.router.solver.client_statistics import Sample, client_moments, client_sums
from feddrm.router.solver.problem import Problem, Scaler, Whitening, add
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


@pytest.mark.parametrize("coupled", [False, True])
def test_the_penalty_and_its_gradient_are_those_of_its_formula(coupled: bool) -> None:
    g = torch.Generator().manual_seed(0)
    root, point = (torch.randn(3, size, generator=g, dtype=torch.float64) for size in (3, 5))
    precision = root @ root.T if coupled else torch.eye(3).double()
    problem = Problem(3, 4, 0.3, 0.07, precision if coupled else None)
    point.requires_grad_()
    weight, bias = point[:, :-1], point[:, -1]
    expected = (0.3 * (weight * (precision @ weight)).sum() + 0.07 * bias @ precision @ bias) / 2
    value, gradient = problem.penalty(point.detach())
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, point)[0])


def test_a_point_on_the_principal_axes_comes_back() -> None:
    g = torch.Generator().manual_seed(0)
    parts = [torch.randn(40, 3, generator=g, dtype=torch.float64) for _ in range(2)]
    whitening, point = moments_of(parts), torch.randn(2, 4, generator=g, dtype=torch.float64)
    assert whitening.vectors is not None
    x = torch.cat(parts)
    axes = x @ whitening.vectors
    torch.testing.assert_close(axes.T @ axes / len(x), whitening.values.diag())
    turned = whitening.turn(point)
    torch.testing.assert_close(axes @ turned[:, :-1].T + turned[:, -1], x @ point[:, :-1].T + point[:, -1])
    torch.testing.assert_close(whitening.turn(turned, back=True), point)
    on_axes = Whitening(torch.ones(2, 3), None)
    assert on_axes.turn(point) is on_axes.turn(point, back=True) is point
    line = Whitening.of(client_moments(torch.ones(5, 3)))  # rounding may make zeros negative
    assert line.values.min() >= 0


def test_problems_without_an_optimum_are_refused() -> None:
    Problem(2, 1, 0.0).check()
    for outputs, features in ((1, 4), (2, 0)):
        with refused(f"a softmax of {outputs} outputs on {features} features"):
            Problem(outputs, features, 1.0).check()
    for ridge, bias_ridge in ((-1.0, 0.0), (0.0, -1.0), (float("nan"), 0.0), (0.0, float("nan"))):
        with refused(f"ridge={ridge}, bias_ridge={bias_ridge}: give numbers from zero up"):
            Problem(2, 1, ridge, bias_ridge).check()
