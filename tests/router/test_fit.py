from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from feddrm.router.solver.solve import (
    FitState,
    Problem,
    Sample,
    Scaler,
    add,
    advance,
    client_gradient,
    client_scores,
    client_sums,
    first_state,
    logits_at,
    moments_of,
    pooled,
    round_zero,
    scaler_of,
    solve,
)
from refusal import refused


def federation(
    clients: int = 4, features: int = 12, seed: int = 0, sizes: tuple[int, ...] = (60, 150, 90, 40)
) -> list[Sample]:
    """Correlated features that overlap between clients, standardised together."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(features, features, generator=g, dtype=torch.float64) * torch.logspace(
        0, -1.5, features, dtype=torch.float64
    )
    raw = []
    for size in sizes[:clients]:
        mean = 0.5 * torch.randn(features, generator=g, dtype=torch.float64)
        raw.append((torch.randn(size, features, generator=g, dtype=torch.float64) + mean) @ mix)
    scaler = scaler_of(raw)
    return [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]


def objective(problem: Problem, samples: list[Sample]) -> tuple[float, Tensor]:
    """The pooled optimum by SciPy, which knows nothing of clients."""
    everyone = pooled(samples)
    shape = (problem.outputs, problem.features + 1)

    def f(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat.reshape(shape)).requires_grad_()
        z = everyone.x @ point[:, :-1].T + point[:, -1]
        z = z if everyone.offset is None else z + everyone.offset
        loss = torch.nn.functional.cross_entropy(z, everyone.y)
        p = torch.eye(problem.outputs, dtype=torch.float64) if problem.precision is None else problem.precision
        loss = loss + problem.ridge / 2 * torch.trace(point[:, :-1].T @ p @ point[:, :-1])
        loss = loss + problem.bias_ridge / 2 * point[:, -1] @ p @ point[:, -1]
        (gradient,) = torch.autograd.grad(loss, point)
        return float(loss.detach()), gradient.numpy().ravel()

    found = minimize(
        f,
        np.zeros(shape).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20000, "maxfun": 40000, "ftol": 1e-17, "gtol": 1e-10},
    )
    return float(found.fun), torch.from_numpy(found.x.reshape(shape))


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("ridge", [1e-4, 1e-2])
def test_the_federated_optimum_is_the_pooled_one(ridge: float, whitened: bool) -> None:
    samples = federation()
    problem = Problem(4, 12, ridge)
    fit = solve(problem, samples, moments_of(samples) if whitened else None, rounds=2000, tolerance=1e-14)
    loss, point = objective(problem, samples)
    assert fit.converged
    assert abs(fit.loss - loss) < 1e-8
    assert (fit.point - fit.point.mean(0) - (point - point.mean(0))).abs().max() < 1e-5


def test_it_agrees_with_scikit_learn() -> None:
    samples = federation()
    everyone = pooled(samples)
    fit = solve(Problem(4, 12, 1e-3), samples, moments_of(samples), rounds=500, tolerance=1e-14)
    theirs = LogisticRegression(C=1 / (1e-3 * len(everyone)), tol=1e-10, max_iter=5000).fit(everyone.x, everyone.y)
    expected = torch.from_numpy(np.column_stack([theirs.coef_, theirs.intercept_]))
    assert (fit.point - fit.point.mean(0) - (expected - expected.mean(0))).abs().max() < 1e-5


def test_coupled_outputs_offsets_and_ridge_on_the_bias() -> None:
    samples = federation()
    g = torch.Generator().manual_seed(5)
    samples = [Sample(s.x, s.y, torch.randn(len(s), 4, generator=g, dtype=torch.float64)) for s in samples]
    a = torch.randn(4, 4, generator=g, dtype=torch.float64)
    problem = Problem(4, 12, 1e-2, 1e-3, a @ a.T + torch.eye(4, dtype=torch.float64))
    fit = solve(problem, samples, moments_of(samples), rounds=500, tolerance=1e-14)
    loss, point = objective(problem, samples)
    assert abs(fit.loss - loss) < 1e-8
    assert (fit.point - point).abs().max() < 1e-5


def test_messages_hold_no_sample() -> None:
    sample = federation()[0]
    message = client_gradient(sample, torch.zeros(4, 13, dtype=torch.float64))
    assert {key: tuple(value.shape) for key, value in message.items()} == {"count": (), "loss": (), "gradient": (4, 13)}
    assert set(client_scores(sample, torch.zeros(4, 13, dtype=torch.float64))) == {"count", "loss", "correct"}


def test_the_gradient_is_autograds() -> None:
    sample = federation()[1]
    point = torch.randn(4, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits_at(sample.x, point), sample.y, reduction="sum")
    (expected,) = torch.autograd.grad(loss, point)
    message = client_gradient(sample, point.detach())
    assert torch.allclose(message["gradient"], expected, atol=1e-10)
    assert torch.allclose(message["loss"], loss.detach(), atol=1e-10)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(0, 100))
def test_standardisation_is_that_of_the_pooled_data(sizes: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    parts = [3 + 2 * torch.randn(size, 3, generator=g, dtype=torch.float64) for size in sizes]
    scaler = Scaler.of(add([client_sums(part) for part in parts]))
    everyone = torch.cat(parts)
    assert torch.allclose(scaler.mean, everyone.mean(0))
    assert torch.allclose(scaler.scale, everyone.std(0, correction=0), atol=1e-6)


def test_a_feature_that_never_varies_is_harmless() -> None:
    x = torch.full((50, 2), 7.3)
    x[:, 1] = torch.arange(50)
    scaled = Scaler.of(client_sums(x))(x)
    assert scaled[:, 0].abs().max() < 1e-5
    samples = [
        Sample(scaled[:25], torch.zeros(25, dtype=torch.int64)),
        Sample(scaled[25:], torch.ones(25, dtype=torch.int64)),
    ]
    assert solve(Problem(2, 2, 1e-2), samples, moments_of(samples)).point.isfinite().all()


def test_a_saved_fit_goes_on_bit_for_bit() -> None:
    samples = federation()
    problem, whitening = Problem(4, 12, 1e-3), moments_of(samples)

    def play(state: FitState, rounds: int) -> FitState:
        for _ in range(rounds):
            messages = {i: client_gradient(sample, state.point) for i, sample in enumerate(samples)}
            state = advance(problem, state, messages, whitening, 1e-14)
        return state

    straight = play(first_state(problem, 4), 9)
    halfway = FitState.load(load(save(play(first_state(problem, 4), 4).tensors())))
    resumed = play(halfway, 5)
    for name, value in straight.tensors().items():
        assert torch.equal(value, getattr(resumed, name)), name
    with refused("lacks 'steps'", "start the fit again"):
        FitState.load({k: v for k, v in halfway.tensors().items() if k != "steps"})


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_miss_rounds_delay_the_optimum_but_do_not_move_it(seed: int) -> None:
    samples = federation()
    problem, whitening = Problem(4, 12, 1e-2), moments_of(samples)
    exact = solve(problem, samples, whitening, rounds=500, tolerance=1e-14)
    rng = np.random.default_rng(seed)
    state = first_state(problem, 4)
    for _ in range(300):
        here = [i for i in range(4) if rng.random() < 0.7]
        state = advance(problem, state, {i: client_gradient(samples[i], state.point) for i in here}, whitening, 1e-13)
        if state.done:
            break
    assert state.done
    assert (state.at - exact.point).abs().max() < 1e-4


def test_nobody_answers() -> None:
    problem = Problem(2, 3, 1e-3)
    state = advance(problem, first_state(problem, 2), {})
    assert int(state.rounds) == 1
    assert not state.done


def test_an_absent_client_never_ends_the_fit() -> None:
    samples = federation()
    problem, whitening = Problem(4, 12, 1e-2), moments_of(samples)
    state = first_state(problem, 4)
    for _ in range(60):
        state = advance(problem, state, {i: client_gradient(samples[i], state.point) for i in range(3)}, whitening)
    assert not state.done


def test_round_zero_is_the_linear_discriminant() -> None:
    """The first step must already be right where a discriminant is: Gaussians with one covariance."""
    g = torch.Generator().manual_seed(0)
    means = torch.randn(3, 6, generator=g, dtype=torch.float64)
    raw = [torch.randn(4000, 6, generator=g, dtype=torch.float64) + mean for mean in means]
    scaler = scaler_of(raw)
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]
    problem, whitening = Problem(3, 6, 1e-6), moments_of(samples)
    seen: list[float] = []
    solve(problem, samples, whitening, rounds=30, watch=lambda s: seen.append(_accuracy(samples, s.at)))
    assert seen[1] > seen[-1] - 0.002  # after one step
    assert seen[1] > 0.8


def test_round_zero_needs_no_asking() -> None:
    """What clients would answer at zero follows from the sums that standardisation took."""
    g = torch.Generator().manual_seed(1)
    raw = [torch.randn(n, 5, generator=g, dtype=torch.float64) + i for i, n in enumerate((30, 80, 50))]
    scaler = scaler_of(raw)
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]
    problem, whitening = Problem(3, 5, 1e-3), moments_of(samples)
    start = first_state(problem, 3)
    asked = advance(problem, start, {i: client_gradient(s, start.point) for i, s in enumerate(samples)}, whitening)
    known = round_zero(problem, [client_sums(x) for x in raw], scaler, whitening)
    assert int(known.rounds) == 0
    for name, value in asked.tensors().items():
        if name != "rounds":
            torch.testing.assert_close(getattr(known, name), value, rtol=1e-9, atol=1e-9)
    fits = [solve(problem, samples, whitening, start=begun, rounds=300, tolerance=1e-13) for begun in (None, known)]
    assert fits[0].rounds == fits[1].rounds + 1
    assert (fits[0].point - fits[1].point).abs().max() < 1e-6
    with refused("2 clients for 3 outputs"):
        round_zero(problem, [client_sums(x) for x in raw[:2]], scaler, whitening)


def test_few_rounds_suffice_when_whitened() -> None:
    samples = federation(features=40, sizes=(400, 700, 500, 300))
    problem = Problem(4, 40, 1e-3)
    seen: list[float] = []
    solve(
        problem,
        samples,
        moments_of(samples),
        rounds=200,
        tolerance=1e-12,
        watch=lambda s: seen.append(_accuracy(samples, s.at)),
    )
    assert min(seen[14:]) > seen[-1] - 0.003


def _accuracy(samples: list[Sample], point: Tensor) -> float:
    total = add([client_scores(sample, point) for sample in samples])
    return float(total["correct"] / total["count"])


def test_single_precision_reaches_the_same_decisions() -> None:
    samples = federation()
    single = [Sample(s.x.float(), s.y) for s in samples]
    fit = solve(Problem(4, 12, 1e-3), samples, moments_of(samples), rounds=200, tolerance=1e-10)
    other = solve(Problem(4, 12, 1e-3), single, moments_of(single), rounds=200, tolerance=1e-7)
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
        solve(Problem(4, 12, 0.1), federation(), rounds=0)


def test_a_warm_start_is_not_taken_for_the_end() -> None:
    """Where clients lie far apart the loss is almost flat: by the curvature at zero any point is the optimum."""
    g = torch.Generator().manual_seed(4)
    raw = []
    for _ in range(8):
        centre = 2 * torch.randn(60, generator=g, dtype=torch.float64)
        raw.append(centre + torch.randn(30, 60, generator=g, dtype=torch.float64))
    scaler = scaler_of(raw)
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]
    whitening = moments_of(samples)
    strong = solve(Problem(8, 60, 3e-4), samples, whitening, rounds=300, tolerance=1e-9)
    weak = Problem(8, 60, 1e-4)
    fit = solve(weak, samples, whitening, start=strong.point, rounds=300, tolerance=1e-6)
    best, _ = objective(weak, samples)
    assert fit.converged
    assert fit.loss - best < 5e-6
