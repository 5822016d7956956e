"""The server's L-BFGS: saved states, missing clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from feddrm.router.solver import lbfgs
from feddrm.router.solver.client_statistics import client_gradient
from feddrm.router.solver.lbfgs import FitState, advance, first_state
from feddrm.router.solver.problem import Problem, Whitening
from feddrm.router.solver.solve import moments_of, solve
from refusal import refused

from .made import clients_with_overlap


def test_a_saved_fit_goes_on_bit_for_bit() -> None:
    samples = clients_with_overlap()
    problem, whitening = Problem(4, 12, 1e-3), moments_of([s.x for s in samples])

    def play(state: FitState, rounds: int) -> FitState:
        for _ in range(rounds):
            messages = {i: client_gradient(sample, state.trial) for i, sample in enumerate(samples)}
            state = advance(problem, state, messages, whitening, 1e-14)
        return state

    straight = play(first_state(problem, 4), 9)
    saved = save({name: value.contiguous() for name, value in vars(play(first_state(problem, 4), 4)).items()})
    resumed = play(FitState(**load(saved)), 5)
    for name, value in vars(straight).items():
        assert torch.equal(value, getattr(resumed, name)), name


@pytest.mark.parametrize("pairs", [0, 1, 7, lbfgs.MEMORY, lbfgs.MEMORY + 5])
def test_the_direction_is_that_of_the_two_loops(pairs: int) -> None:
    """Nocedal's recursion over the last pairs, written out."""
    problem = Problem(3, 4, 1e-2)
    generator = torch.Generator().manual_seed(pairs)
    root = torch.randn(15, 15, generator=generator, dtype=torch.float64)
    hessian, state, remembered = root @ root.T / 15, first_state(problem, 1), []
    for _ in range(pairs):
        step = torch.randn(3, 5, generator=generator, dtype=torch.float64)
        change = (hessian @ step.flatten()).view(3, 5)
        remembered.append((step, change))
        state = lbfgs._with_pair(state, step, change, state.curvature)
    gradient = torch.randn(3, 5, generator=generator, dtype=torch.float64)

    q, weights = gradient.clone(), []
    for step, change in reversed(remembered[-lbfgs.MEMORY :]):
        weights.append((step * q).sum() / (step * change).sum())
        q -= weights[-1] * change
    r = lbfgs._solve_first(problem, q, state.curvature, None)
    for (step, change), weight in zip(remembered[-lbfgs.MEMORY :], reversed(weights), strict=True):
        r += (weight - (change * r).sum() / (step * change).sum()) * step
    torch.testing.assert_close(lbfgs._direction(problem, gradient, state, None), -r, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_miss_rounds_delay_the_optimum_but_do_not_move_it(seed: int) -> None:
    samples = clients_with_overlap()
    problem, whitening = Problem(4, 12, 1e-2), moments_of([s.x for s in samples])
    exact = solve(problem, samples, whitening, rounds=500, tolerance=1e-14)
    rng = np.random.default_rng(seed)
    state = first_state(problem, 4)
    for _ in range(300):
        here = [i for i in range(4) if rng.random() < 0.7]
        state = advance(problem, state, {i: client_gradient(samples[i], state.trial) for i in here}, whitening, 1e-13)
        if state.done:
            break
    assert state.done
    assert (state.iterate - exact.point).abs().max() < 1e-4


def test_nobody_answers() -> None:
    problem = Problem(2, 3, 1e-3)
    state = advance(problem, first_state(problem, 2), {})
    assert int(state.rounds) == 1
    assert not state.done


def test_an_absent_client_never_ends_the_fit() -> None:
    samples = clients_with_overlap()
    problem, whitening = Problem(4, 12, 1e-2), moments_of([s.x for s in samples])
    state = first_state(problem, 4)
    for _ in range(60):
        state = advance(problem, state, {i: client_gradient(samples[i], state.trial) for i in range(3)}, whitening)
    assert not state.done


def test_a_fit_without_a_bound_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs, "MOST_ROUNDS", 3)
    samples = clients_with_overlap()
    fit = solve(Problem(4, 12, 1e-3), samples, rounds=None, tolerance=0.0)
    assert (fit.rounds, fit.converged) == (3, False)


@pytest.mark.parametrize("broken", ["feature", "direction"])
def test_a_fit_that_is_not_finite_ends_with_one_line(broken: str) -> None:
    """Every comparison with such a number is false, so the fit would never be done."""
    samples = clients_with_overlap()
    whitening = moments_of([s.x for s in samples])
    if broken == "feature":
        samples[2].x[5, 3] = torch.inf
    else:
        whitening = Whitening(whitening.values * torch.nan, whitening.vectors)
    with refused("the fit is not finite in round 1", "larger ridge"):
        solve(Problem(4, 12, 1e-3), samples, whitening)


def test_a_step_to_where_the_loss_is_not_finite_is_shortened() -> None:
    samples, problem = clients_with_overlap(), Problem(4, 12, 1e-2)
    state = first_state(problem, 4)
    for number in range(60):
        messages = {i: client_gradient(sample, state.trial) for i, sample in enumerate(samples)}
        if number == 1:
            messages[0]["loss"] = torch.tensor(torch.inf)
        before, state = state, advance(problem, state, messages, moments_of([s.x for s in samples]))
        if number == 1:
            assert torch.equal(state.iterate, before.iterate)
            assert 0 < (state.trial - state.iterate).norm() < (before.trial - before.iterate).norm()
    assert state.done


def centred_samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated features about zero of three unequal classes with different means."""
    g = torch.Generator().manual_seed(3)
    y = torch.tensor([0] * 20 + [1] * 35 + [2] * 45)
    x = (torch.randn(100, 4, generator=g) + torch.randn(3, 4, generator=g)[y]) @ torch.randn(4, 4, generator=g)
    return x.double() - x.double().mean(0), y


def test_the_first_step_is_half_way_to_the_linear_discriminant() -> None:
    x, y = centred_samples()
    problem, whitening = Problem(3, 4, 1e-3), moments_of([x])
    own = torch.nn.functional.one_hot(y, 3).double()
    gradient = (1 / 3 - own).T @ torch.cat([x, torch.ones(100, 1)], dim=1) / 100
    share = own.mean(0)
    means = own.T @ x / own.sum(0)[:, None]
    total = x.T @ x / 100 + (lbfgs.LDA_RIDGE * 1e-3 + 1e-6 * whitening.values.max()) * torch.eye(4).double()
    weight = torch.linalg.solve(total - (means.T * share) @ means, means.T).T
    expected = torch.cat([weight, (share.log() - (weight * means).sum(1) / 2)[:, None]], dim=1)
    found = lbfgs._discriminant(problem, gradient, whitening, torch.zeros(3, 5))
    torch.testing.assert_close(found, lbfgs.HALF * (expected - expected.mean(0)))


@pytest.mark.parametrize("coupled", [False, True])
def test_the_first_guess_of_the_hessian_is_solved_as_the_matrix_that_it_stands_for(coupled: bool) -> None:
    x, _ = centred_samples()
    g = torch.Generator().manual_seed(0)
    root, gradient = (torch.randn(3, size, generator=g, dtype=torch.float64) for size in (3, 5))
    precision = root @ root.T if coupled else torch.eye(3).double()
    problem = Problem(3, 4, 0.3, 0.07, precision if coupled else None)
    moments = torch.block_diag(x.T @ x / 100, torch.ones(1, 1))
    penalty = torch.tensor([0.3] * 4 + [0.07]).double().diag()
    hessian = 0.4 * torch.kron(torch.eye(3), moments) + torch.kron(precision, penalty)
    expected = torch.linalg.solve(hessian, gradient.flatten()).view(3, 5)
    found = lbfgs._solve_first(problem, gradient, torch.tensor(0.4).double(), moments_of([x]))
    torch.testing.assert_close(found, expected)
