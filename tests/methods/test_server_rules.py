"""What the servers of ConFREE and of FedPAC as first published compute, against literal code and general solvers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn

from feddrm.methods import ConFREE, Tensors
from feddrm.methods.confree import EPSILON, without_conflicts, worst_client_best
from feddrm.methods.fedpac import SMALLEST_SHARE, head_shares

CLASSES = 3

# --- ConFREE ------------------------------------------------------------------------------------

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
def test_confree_is_the_double_loop(drawn):
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


def test_confree_takes_opposite_moves_apart():
    d = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]]).double()
    share = without_conflicts(d @ d.T, torch.full((3,), 1 / 3, dtype=torch.float64))
    # 0 and 1 are at right angles; 2 conflicts with both: each loses half of d2's mirror image.
    wanted = pairwise(d).mean(0)
    torch.testing.assert_close(share @ d, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(wanted, d.mean(0))


@given(moves())
def test_without_conflicts_it_is_averaging(drawn):
    d, weights = drawn
    d = d.abs()
    assert torch.equal(without_conflicts(d @ d.T, weights), weights)


@given(moves())
def test_a_conflict_averse_step_without_radius_or_conflict_is_the_mean(drawn):
    d = drawn[0].abs()
    share = worst_client_best(d @ d.T, radius=0.0)
    torch.testing.assert_close(share, torch.full((len(d),), 1 / len(d), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("radius", [0.2, 0.5, 0.9])
def test_a_conflict_averse_step_serves_the_worst_client_best(radius):
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


def test_epsilon_is_the_specifications():
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


# --- FedPAC, original ---------------------------------------------------------------------------


def statistics(x: Tensor, y: Tensor) -> Tensors:
    """What a client with these features would upload."""
    member = nn.functional.one_hot(y, CLASSES).double()
    return {"sums": member.T @ x, "counts": member.sum(0), "squares": x.square().sum()}


def drawn_statistics(seed: int, gap: float = 1.0) -> list[Tensors]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(12) % CLASSES
    features = torch.randn(4, 12, 2, generator=generator, dtype=torch.float64)
    return [statistics(x + gap * i * y[:, None], y) for i, x in enumerate(features)]


@pytest.mark.parametrize("gap", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_head_shares_lie_on_the_simplex(seed, gap):
    shares = head_shares(drawn_statistics(seed, gap))
    assert shares.shape == (4, 4)
    assert (shares >= 0).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(4).double(), rtol=0, atol=1e-12)
    assert not ((shares > 0) & (shares < 0.99 * SMALLEST_SHARE)).any()


def test_head_shares_of_two_clients_in_closed_form():
    uploads = drawn_statistics(0, gap=0.3)[:2]
    total = [float(u["counts"].sum()) for u in uploads]
    mean = [u["sums"] / n for u, n in zip(uploads, total, strict=True)]
    variance = [float(u["squares"] / n - h.square().sum()) / n for u, h, n in zip(uploads, mean, total, strict=True)]
    gap = float((mean[0] - mean[1]).square().sum())
    # a' (diag V + D_0) a with a = (1 - s, s): the other's head costs its variance and the bias.
    take_0 = variance[0] / (variance[0] + variance[1] + gap)
    take_1 = variance[1] / (variance[0] + variance[1] + gap)
    wanted = torch.tensor([[1 - take_0, take_0], [take_1, 1 - take_1]]).double()
    assert 0.05 < take_0 < 0.45
    torch.testing.assert_close(head_shares(uploads), wanted, rtol=0, atol=1e-5)


def cheapest_on_the_simplex(matrix: np.ndarray) -> np.ndarray:
    """By trying every set of clients that may have a share: on one of them the gradient is constant."""
    best, least = np.zeros(len(matrix)), np.inf
    for size in range(1, len(matrix) + 1):
        for chosen in itertools.combinations(range(len(matrix)), size):
            share = np.zeros(len(matrix))
            share[list(chosen)] = np.linalg.solve(matrix[np.ix_(chosen, chosen)], np.ones(size))
            share /= share.sum()
            if (share >= 0).all() and share @ matrix @ share < least:
                best, least = share, share @ matrix @ share
    return best


@pytest.mark.parametrize("far", [0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_head_shares_are_the_cheapest_however_far_some_clients_are(seed, far):
    """Two groups of clients: the distance between groups must not drown the trade-off within them."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % CLASSES
    uploads = [
        statistics(torch.randn(60, 2, generator=generator, dtype=torch.float64) + far * (i >= 3), y) for i in range(6)
    ]
    n = 60
    mean = np.stack([(u["sums"] / n).flatten() for u in uploads])
    variance = np.array([float(u["squares"]) / n - (h**2).sum() for u, h in zip(uploads, mean, strict=True)]) / n
    for i, found in enumerate(head_shares(uploads)):
        gaps = mean[i] - mean
        wanted = cheapest_on_the_simplex(np.diag(variance) + gaps @ gaps.T)
        wanted[wanted < SMALLEST_SHARE] = 0
        np.testing.assert_allclose(found, wanted / wanted.sum(), atol=1e-7)
        assert (found[:3] > 0).sum() + (found[3:] > 0).sum() >= 2  # nobody stands alone


def test_a_client_whose_features_do_not_vary_keeps_its_head():
    still = statistics(torch.zeros(12, 2, dtype=torch.float64), torch.zeros(12, dtype=torch.long))
    shares = head_shares([still, *drawn_statistics(0)])
    torch.testing.assert_close(shares[0], torch.eye(5, dtype=torch.float64)[0], rtol=0, atol=1e-9)


def test_clients_alike_share_equally():
    (one, *_) = drawn_statistics(0)
    torch.testing.assert_close(
        head_shares([one] * 3), torch.full((3, 3), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("take", "kept"), [(4e-3, True), (1.5e-3, True), (7e-4, False), (1e-9, False)])
def test_tiny_head_shares_are_dropped(take, kept):
    # One class, one feature, n samples of variance one: V = 1/n, and the gap sets the share.
    n = 100.0
    gap = math.sqrt((1 / take - 2) / n)

    def one_class(mean: float) -> Tensors:
        counts = torch.tensor([n, 0.0, 0.0], dtype=torch.float64)
        return {"sums": counts[:, None] * mean, "counts": counts, "squares": counts.sum() * (1 + mean**2)}

    shares = head_shares([one_class(0.0), one_class(gap)])
    wanted = torch.tensor([[1 - take, take], [take, 1 - take]], dtype=torch.float64)
    if kept:
        torch.testing.assert_close(shares, wanted, rtol=0, atol=1e-4)
    else:
        assert torch.equal(shares, torch.eye(2, dtype=torch.float64))  # exactly
