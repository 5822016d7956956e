"""Features and ridge strengths are chosen by held-out losses of all clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from feddrm.data import Federation
from feddrm.router.features.base import Embedding, Raw, Recipe
from feddrm.router.fit import local_cohort, selection
from feddrm.router.fit.cohort import FitRequest, Trunk
from feddrm.router.fit.head_problems import probe_problem
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.fit.ridge_path import RidgePath
from feddrm.router.fit.selection import LOOKED_AT, PRODUCTS, Softmax, choose_recipe, metric_of
from feddrm.router.settings import Holdout, RouterSettings
from feddrm.router.solver.client_statistics import Sample, client_scores
from feddrm.router.solver.problem import Problem, add
from feddrm.router.solver.solve import pooled, solve

CLIENTS, CLASSES = 3, 3
RAW, BOTH = Recipe((Raw(),)), Recipe((Raw(), Embedding()))


def rows_of(samples: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Two clean features that tell clients apart, and forty noisy ones that hardly do."""
    generator = torch.Generator().manual_seed(1)
    out = {}
    for client in range(CLIENTS):
        clean = 2 * torch.randn(samples, 2, generator=generator) + client
        noisy = torch.randn(samples, 40, generator=generator)
        noisy[:, :5] += 0.4 * client
        out[f"site-{client}"] = torch.cat([clean, noisy], dim=1), torch.arange(samples) % CLASSES
    return out


@pytest.fixture
def two_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two columns stand for one feature, the others for another."""

    def extract(recipe: Recipe, net: object, leaves: object, x: Tensor) -> dict[str, Tensor]:
        parts = {"raw": x[:, :2].double(), "embedding": x[:, 2:].double()}
        return {feature.name: parts[feature.name] for feature in recipe.features}

    monkeypatch.setattr(local_cohort, "extract", extract)


def measured(samples: int, recipe: Recipe, holdout: Holdout) -> LocalCohort:
    federation = Federation.from_arrays(rows_of(samples), test=rows_of(3))
    cohort = LocalCohort(federation, RouterSettings())
    cohort.measure(recipe, Trunk(None, {}), holdout)
    return cohort


def clients_apart(cohort: LocalCohort) -> Softmax:
    return Softmax(cohort, "client", lambda width, ridge: Problem(CLIENTS, width, ridge), RouterSettings())


@pytest.mark.usefixtures("two_features")
def test_one_ridge_on_stretched_columns_equals_one_ridge_each_on_plain_ones() -> None:
    cohort = measured(120, BOTH, Holdout(5, 1))
    ridge = 0.03
    plain, stretched = cohort.design(BOTH), cohort.design(BOTH, {"raw": 1e-3, "embedding": 1e-1})
    targets = [torch.full((len(x),), i) for i, x in enumerate(plain.rows)]
    fit = solve(
        Problem(CLIENTS, 42, ridge),
        [pooled([Sample(x, y) for x, y in zip(stretched.rows, targets, strict=True)])],
        stretched.whitening,
        rounds=500,
        tolerance=1e-15,
    )
    logits = stretched.rows[0] @ fit.point[:, :-1].T + fit.point[:, -1]
    x, y = torch.cat(plain.rows), torch.cat(targets)
    each = torch.cat([torch.full((2,), ridge * 1e-2), torch.full((40,), ridge)]).double()

    def objective(flat: object) -> tuple[float, object]:
        w = torch.tensor(flat, dtype=torch.float64).view(CLIENTS, 43).requires_grad_()
        loss = torch.nn.functional.cross_entropy(x @ w[:, :-1].T + w[:, -1], y) + (each * w[:, :-1] ** 2).sum() / 2
        (slope,) = torch.autograd.grad(loss, w)
        return float(loss.detach()), slope.flatten().numpy()

    best = minimize(objective, torch.zeros(CLIENTS * 43).numpy(), jac=True, method="BFGS", options={"gtol": 1e-9})
    w = torch.tensor(best.x).view(CLIENTS, 43)
    assert (logits - (plain.rows[0] @ w[:, :-1].T + w[:, -1])).abs().max() < 1e-5
    assert fit.loss == pytest.approx(best.fun, abs=1e-9)


@pytest.mark.usefixtures("two_features")
def test_columns_are_stretched_by_the_root_of_the_ratio_of_ridges() -> None:
    cohort = measured(120, BOTH, Holdout(5, 1))
    plain = torch.cat(cohort.design(BOTH).rows)
    same = torch.cat(cohort.design(BOTH, {"raw": 0.2, "embedding": 0.2}).rows)
    assert torch.equal(same, plain)
    louder = torch.cat(cohort.design(BOTH, {"raw": 1e-4, "embedding": 1e-2}).rows)
    assert torch.allclose(louder[:, :2], 10 * plain[:, :2])
    assert torch.equal(louder[:, 2:], plain[:, 2:])


@pytest.mark.usefixtures("two_features")
def test_both_features_together_are_no_worse_than_either_alone() -> None:
    holdout = Holdout(5, 1)
    cohort = measured(600, BOTH, holdout)
    names: list[str] = []
    recipes = [RAW, Recipe((Embedding(),)), BOTH]
    design, chosen, trials = choose_recipe(clients_apart(cohort), recipes, holdout, names.append)
    assert design.recipe == BOTH
    assert names == ["raw", "embedding", "raw+embedding"]
    assert chosen.loss <= min(trial["held_out_loss"] for trial in trials.values()) + 1e-3
    assert design.whitening.values.shape == (42,)


def test_ridges_are_chosen_by_the_held_out_losses_of_all_clients() -> None:
    cohort = measured(90, RAW, Holdout(4, 2))
    design = cohort.design(RAW)
    softmax = Softmax(cohort, "class", lambda width, ridge: probe_problem(CLASSES, width, ridge), RouterSettings())
    chosen = softmax.choose_one(design, (1.0, 0.1, 0.01), folds=2, rounds=12)
    assert chosen.loss == min(step[1] for step in chosen.path)
    assert len(chosen.folds) == 2
    each = [client_scores(s, point) for fold, point in enumerate(chosen.folds) for s in cohort.each(design, fold, True)]
    total = add(each)
    assert float(total["loss"] / total["count"]) == pytest.approx(chosen.loss, rel=1e-6)
    corrections = cohort.corrections(design, chosen.folds)
    path = RidgePath((1.0, 0.1), folds=2)
    while path.ridge is not None:
        path.take(*corrections.scores(path.ridge, path.starts))
    assert path.chosen.folds[0].shape == (CLIENTS * CLASSES, design.width + 1)


def test_a_strong_ridge_protects_small_clients() -> None:
    """With more features than samples a fit without ridge would be worse than guessing."""
    generator = torch.Generator().manual_seed(0)
    rows = {name: (torch.randn(30, 80, generator=generator), torch.arange(30) % 2) for name in ("oslo", "lima")}
    cohort = LocalCohort(Federation.from_arrays(rows, test=rows), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(3, 3))
    softmax = Softmax(cohort, "client", lambda width, ridge: Problem(2, width, ridge), RouterSettings())
    assert softmax.choose_one(cohort.design(RAW), (10.0, 1.0, 0.1, 1e-3), folds=3, rounds=12).ridge == 10.0


def test_path_rounds_bound_the_fits_that_only_compare() -> None:
    cohort = measured(40, RAW, Holdout(4, 1))
    rounds = []
    gradients = cohort.gradients

    def counted(requests: object, points: object) -> object:
        rounds.append(1)
        return gradients(requests, points)  # type: ignore[arg-type]

    cohort.gradients = counted  # type: ignore[assignment, method-assign]
    softmax = Softmax(
        cohort, "client", lambda width, ridge: Problem(CLIENTS, width, ridge), RouterSettings(path_rounds=2)
    )
    softmax.choose_one(cohort.design(RAW), (1e-3,), folds=1, rounds=12)
    assert len(rounds) == 2


def hard_to_fit() -> Softmax:
    """Heavy tails and clients that can almost be told apart: no quadratic fits the loss well."""
    generator = torch.Generator().manual_seed(1)
    rows = {}
    for client in range(CLIENTS):
        x = torch.randn(60, 42, generator=generator)
        x[:, :5] += 1.2 * client
        rows[f"site-{client}"] = x**3, torch.arange(60) % CLASSES
    cohort = LocalCohort(Federation.from_arrays(rows, test=rows), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(5, 1))
    return clients_apart(cohort)


def test_a_fit_goes_on_to_its_optimum_unless_its_rounds_are_bounded() -> None:
    softmax, zero = hard_to_fit(), [torch.zeros(CLIENTS, 43, dtype=torch.float64)]
    design = softmax.cohort.design(RAW)
    optimum = softmax.fit_all(design, 1e-5, zero)
    assert optimum.done
    assert int(optimum.rounds) > 60
    bounded = replace(softmax, settings=RouterSettings(rounds=60)).fit_all(design, 1e-5, zero)
    assert not bounded.done
    assert int(bounded.rounds) == 60


def test_the_fit_on_all_samples_starts_from_the_folds_even_from_one() -> None:
    softmax, zero = hard_to_fit(), torch.zeros(CLIENTS, 43, dtype=torch.float64)
    design = softmax.cohort.design(RAW)
    from_zero = softmax.fit_all(design, 1e-5, [zero])
    again = softmax.fit_all(design, 1e-5, [from_zero.iterate])
    assert again.done
    assert int(again.rounds) < int(from_zero.rounds) / 10


def test_second_derivatives_are_of_as_many_samples_as_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MANY", 2)
    monkeypatch.setattr(selection, "LARGE", 1)
    cohort = measured(40, RAW, Holdout(4, 1))
    design = cohort.design(RAW)
    request = FitRequest(design, "client", Problem(CLIENTS, design.width, 0.1), None)
    zero = torch.zeros(CLIENTS, design.width + 1, dtype=torch.float64)

    def looked_at(part_bytes: int | None) -> torch.Tensor:
        metric = metric_of(request, True, part_bytes)
        assert callable(metric)
        return metric(zero).x

    every = sum(len(x[::LOOKED_AT]) for x in design.rows)
    a_sample = PRODUCTS * design.rows[0].element_size() * CLIENTS
    assert len(looked_at(None)) == every
    assert torch.equal(looked_at(every * a_sample), looked_at(None))
    assert len(looked_at(4 * a_sample)) <= 4
    assert len(looked_at(1)) == 1
