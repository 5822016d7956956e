"""The server's L-BFGS: saved states, missing clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from feddrm.router.solver import lbfgs
from feddrm.router.solver.client_statistics import client_gradient
from feddrm.router.solver.lbfgs import FitState, advance, first_state
from feddrm.router.solver.problem import Problem
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
    halfway = FitState.load(load(save(play(first_state(problem, 4), 4).tensors())))
    resumed = play(halfway, 5)
    for name, value in straight.tensors().items():
        assert torch.equal(value, getattr(resumed, name)), name
    with refused("lacks 'steps'", "start the fit again"):
        FitState.load({k: v for k, v in halfway.tensors().items() if k != "steps"})


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
