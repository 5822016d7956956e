"""ConFREE: the server removes conflicts; compared with literal code and general solvers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from feddrm.methods import ConFREE
from feddrm.methods.confree import EPSILON, without_conflicts, worst_client_best

number = st.floats(-3, 3, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def moves(draw) -> tuple[Tensor, Tensor]:
    """Some clients' moves [client, coordinate] and weights."""
    m, size = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(number, min_size=size, max_size=size), min_size=m, max_size=m))
    sizes = draw(st.lists(st.integers(1, 9), min_size=m, max_size=m))
    weights = torch.tensor(sizes, dtype=torch.float64)
    return torch.tensor(rows, dtype=torch.float64), weights / weights.sum()


def pairwise(d: Tensor) -> Tensor:
    """The rule as the specification words it, pair by pair."""
    out = d.clone()
    for i, j in itertools.combinations(range(len(d)), 2):
        product = d[i] @ d[j]
        if product < 0:
            out[i] -= product / (d[j] @ d[j] + 1e-8) * d[j]
            out[j] -= product / (d[i] @ d[i] + 1e-8) * d[i]
    return out


@given(moves())
def test_aggregation_equals_the_double_loop_over_pairs(drawn):
    d, weights = drawn
    half = d.shape[1] // 2
    start = torch.linspace(-1, 1, d.shape[1], dtype=torch.float64)
    # Conflicts are judged over the whole body, however it is cut into leaves.
    shared = {"a": start[:half], "b": start[half:].reshape(1, -1)}
    uploads = [{"a": (start + row)[:half], "b": (start + row)[half:].reshape(1, -1)} for row in d]
    exact = torch.stack([torch.cat([u["a"], u["b"][0]]) for u in uploads]) - start
    found = ConFREE().aggregate(shared, uploads, weights)
    wanted = start + weights @ pairwise(exact)
    torch.testing.assert_close(torch.cat([found["a"], found["b"][0]]), wanted, rtol=1e-9, atol=1e-9)


def test_opposite_moves_lose_their_common_part():
    d = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]]).double()
    share = without_conflicts(d @ d.T, torch.full((3,), 1 / 3, dtype=torch.float64))
    # 0 and 1 are at right angles; 2 conflicts with both: each loses half of d2's mirror image.
    wanted = pairwise(d).mean(0)
    torch.testing.assert_close(share @ d, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(wanted, d.mean(0))


@given(moves())
def test_moves_without_conflict_are_averaged(drawn):
    d, weights = drawn
    d = d.abs()
    assert torch.equal(without_conflicts(d @ d.T, weights), weights)


@given(moves())
def test_a_conflict_averse_step_without_radius_or_conflict_is_the_mean(drawn):
    d = drawn[0].abs()
    share = worst_client_best(d @ d.T, radius=0.0)
    torch.testing.assert_close(share, torch.full((len(d),), 1 / len(d), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("radius", [0.2, 0.5, 0.9])
def test_a_conflict_averse_step_of_two_clients_solves_the_dual(radius):
    # Two clients without conflict: the guide is the mean, and the dual has one unknown.
    d = torch.tensor([[3.0, 0.0, 1.0], [0.2, 0.5, 0.0]]).double()
    guide = d.mean(0)
    ball = radius * guide.norm()

    def dual(w: float) -> float:
        g = w * d[0] + (1 - w) * d[1]
        return float(g @ guide + ball * g.norm())

    w = minimize_scalar(dual, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
    g = w * d[0] + (1 - w) * d[1]
    wanted = (guide + ball * g / g.norm()) / (1 + radius**2)
    found = worst_client_best(d @ d.T, radius) @ d
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-3)
    # At least as good for whoever fares worst as the mean of the same length of step.
    assert (d @ found).min() >= (d @ guide).min() / (1 + radius**2)


def test_epsilon_is_that_of_the_paper():
    assert EPSILON == 1e-8


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e6])
def test_a_conflict_averse_step_does_not_depend_on_how_far_clients_moved(scale):
    """At the end of a cosine schedule a tensor's moves are some 1e-7 long, and their products 1e-14."""
    d = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (worst_client_best((s * d) @ (s * d).T, 0.5) for s in (1.0, scale))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert one.max() - one.min() > 0.1  # far from the mean


@pytest.mark.parametrize("seed", range(8))
def test_a_conflict_averse_step_of_many_clients_solves_the_dual(seed):
    """Against a general solver, in vectors instead of coefficients; clients of very different sizes."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(3, 9))
    d = rng.normal(size=(m, 20)) * np.exp(rng.normal(size=(m, 1))) + rng.normal() / 2
    projected = d.copy()
    for i, j in itertools.permutations(range(m), 2):
        projected[i] -= min(0.0, projected[i] @ d[j]) / (d[j] @ d[j]) * d[j]
    guide = projected.mean(0)
    ball = 0.5 * np.linalg.norm(guide)
    found = minimize(
        lambda w: (w @ d @ guide + ball * np.linalg.norm(w @ d)) / ball**2,
        np.full(m, 1 / m),
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    wanted = (guide + ball * found.x @ d / np.linalg.norm(found.x @ d)) / 1.25
    gram = torch.from_numpy(d @ d.T)
    share = worst_client_best(torch.stack([gram, torch.zeros_like(gram)]), 0.5)  # beside a tensor nobody moved
    np.testing.assert_allclose(share[0].numpy() @ d, wanted, atol=2e-3 * np.linalg.norm(wanted))
    assert share[1].isfinite().all()
