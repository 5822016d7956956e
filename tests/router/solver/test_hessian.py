"""Second derivatives that clients send once, and the steps that the server takes with them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

from feddrm.router.solver import hessian as solver_hessian
from feddrm.router.solver.client_statistics import ClientSums, Sample, client_gradient
from feddrm.router.solver.hessian import Hessian, SampledHessian, client_hessian, client_score_scatter
from feddrm.router.solver.lbfgs import Minimisation, advance, first_state, minimise
from feddrm.router.solver.problem import Problem, add
from feddrm.router.solver.solve import moments_of, pooled, solve

from .made import clients_with_overlap, pooled_optimum

SAMPLES = clients_with_overlap()
PROBLEM = Problem(4, 12, 1e-3)
POINT = torch.linspace(-0.4, 0.3, 4 * 13, dtype=torch.float64).view(4, 13)


def known_at(point: torch.Tensor) -> Hessian:
    return Hessian.of(add([client_hessian(sample, point) for sample in SAMPLES]), PROBLEM)


def test_the_sums_of_all_clients_are_the_second_derivatives_of_the_pooled_loss() -> None:
    everyone = pooled(SAMPLES)

    def loss(point: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(everyone.x @ point[:, :-1].T + point[:, -1], everyone.y)

    torch.testing.assert_close(known_at(POINT).values, hessian(loss, POINT), rtol=1e-10, atol=1e-12)


def test_the_scatter_is_the_covariance_of_the_samples_scores_as_often_as_there_are_samples() -> None:
    sample = SAMPLES[1]

    def likelihoods(point: torch.Tensor) -> torch.Tensor:
        logits = sample.x.double() @ point[:, :-1].T + point[:, -1]
        return -torch.nn.functional.cross_entropy(logits, sample.y, reduction="none")

    scores = jacobian(likelihoods, POINT)[:, 1:].flatten(1)
    each = client_score_scatter(sample, POINT, torch.arange(len(sample)).flip(0))
    torch.testing.assert_close(each["scatter"], len(sample) * torch.cov(scores.T), rtol=1e-10, atol=1e-12)
    assert torch.equal(each["scatter"], each["sample_scatter"]), "of subjects with one sample each, to the last bit"
    # Subjects with several samples: their sums of the scores around the mean score of all samples.
    subject = torch.arange(len(sample)) % 5 + 3
    found = client_score_scatter(sample, POINT, subject)
    sums = torch.stack([(scores - scores.mean(0))[subject == number].sum(0) for number in range(3, 8)])
    torch.testing.assert_close(found["scatter"], 5 / 4 * sums.T @ sums, rtol=1e-10, atol=1e-12)
    expected = 5 / 4 * (len(sample) - 1) * torch.cov(scores.T)
    torch.testing.assert_close(found["sample_scatter"], expected, rtol=1e-10, atol=1e-12)
    assert [float(of["few"]) for of in (each, found)] == [0, float(POINT.shape[1] > 5)]


def test_a_step_solves_the_system_with_the_penalty() -> None:
    known = known_at(POINT)
    gradient = POINT.flip(0) - POINT.flip(0).mean(0)  # as every gradient of a softmax, it adds up to zero over outputs
    step = known.solve(PROBLEM, gradient)
    penalty = torch.cat([PROBLEM.ridge * step[:, :-1], torch.zeros(4, 1)], dim=1)
    torch.testing.assert_close(torch.einsum("kdle,le->kd", known.values, step) + penalty, gradient, rtol=0, atol=1e-8)


def test_a_client_sends_one_triangle_per_pair_of_outputs_but_the_last() -> None:
    assert client_hessian(SAMPLES[0], POINT)["hessian"].shape == (3 * 4 // 2, 13 * 14 // 2)


def test_with_them_a_few_rounds_reach_the_optimum() -> None:
    """From a point nearby; the same rounds with second moments alone are far behind."""
    _, best = pooled_optimum(PROBLEM, SAMPLES)
    start = best + 0.02 * POINT
    apart = {}
    for name, metric in (("hessian", known_at(start)), ("nothing", None)):
        state = first_state(PROBLEM, 4, start=start)
        for _ in range(6):
            answers = {i: client_gradient(sample, state.trial) for i, sample in enumerate(SAMPLES)}
            state = advance(PROBLEM, state, answers, metric, 0.0)
        apart[name] = float(((state.iterate - best) - (state.iterate - best).mean(0)).abs().max())
    assert apart["hessian"] < 1e-6 < 1e-3 < apart["nothing"]


def test_products_with_all_samples_give_newtons_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conjugate gradients to their end, against the Cholesky factor of all second derivatives."""
    monkeypatch.setattr(solver_hessian, "MOST_PRODUCTS", 500)
    monkeypatch.setattr(solver_hessian, "ENOUGH", 1e-9)
    everyone, problem = pooled(SAMPLES), Problem(4, 12, 1e-3, 1e-4)
    g = torch.Generator().manual_seed(3)
    point, gradient = (torch.randn(4, 13, generator=g, dtype=torch.float64) for _ in range(2))
    gradient -= gradient.mean(0)  # as every gradient of a softmax: a constant on all outputs changes no probability
    exact = Hessian.of(client_hessian(everyone, point), problem).solve(problem, gradient)
    whitening = moments_of([everyone.x])
    assert whitening.vectors is not None
    sampled = SampledHessian.at(point, everyone.x @ whitening.vectors, whitening)
    torch.testing.assert_close(sampled.solve(problem, gradient), exact, rtol=1e-5, atol=1e-6)


def test_where_nothing_slopes_there_is_no_step() -> None:
    """Constant features, and clients of equal sizes: zero is the optimum, and the fit ends there at once."""
    same = [Sample(torch.zeros(16, 3), torch.full((16,), client)) for client in range(4)]
    problem, whitening, everyone = Problem(4, 3, 0.1), moments_of([s.x for s in same]), pooled(same)
    fit = Minimisation(problem, lambda at: SampledHessian.at(at, everyone.x, whitening), first_state(problem, 1))

    def gradients(trials: Mapping[str, torch.Tensor]) -> dict[str, dict[int, ClientSums]]:
        return {key: {0: client_gradient(everyone, point)} for key, point in trials.items()}

    (state,) = minimise({"fit": fit}, gradients, rounds=5, tolerance=1e-6, noise=1e-6).values()
    assert state.done
    assert int(state.rounds) == 1
    assert not state.iterate.any()


def test_some_samples_bring_a_fit_to_the_optimum_of_all() -> None:
    whitening, everyone = moments_of([s.x for s in SAMPLES]), pooled(SAMPLES)
    assert whitening.vectors is not None
    exact = solve(PROBLEM, [everyone], whitening, rounds=500, tolerance=1e-14)
    some = (everyone.x @ whitening.vectors)[::2]
    fit = Minimisation(PROBLEM, lambda point: SampledHessian.at(point, some, whitening), first_state(PROBLEM, 1))

    def gradients(trials: Mapping[str, torch.Tensor]) -> dict[str, dict[int, ClientSums]]:
        return {key: {0: client_gradient(everyone, point)} for key, point in trials.items()}

    (state,) = minimise({"fit": fit}, gradients, rounds=40, tolerance=1e-13, noise=1e-12).values()
    assert state.done
    away = state.iterate - exact.point
    assert (away - away.mean(0)).abs().max() < 1e-4  # an equal change of all biases changes no probability
