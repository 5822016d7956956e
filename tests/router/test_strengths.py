"""Features of different kinds in one fit, each at the strength that suits it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from feddrm.router.features.base import Embedding, Raw, Recipe
from feddrm.router.fit.design_matrix import choose_recipe, local_choice, local_tables, table_of
from feddrm.router.fit.selection import Holdout
from feddrm.router.solver.solve import Problem, Sample, moments_of, pooled, solve

CLIENTS = 3
BOTH = Recipe((Raw(), Embedding()))


def made(samples: int = 120) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
    """Two clean features that tell clients apart, and forty noisy ones that hardly do."""
    generator = torch.Generator().manual_seed(1)
    found, targets = [], []
    for client in range(CLIENTS):
        clean = 2 * torch.randn(samples, 2, generator=generator, dtype=torch.float64) + client
        noisy = torch.randn(samples, 40, generator=generator, dtype=torch.float64)
        noisy[:, :5] += 0.4 * client
        found.append({"raw": clean, "embedding": noisy})
        targets.append(torch.full((samples,), client))
    return found, targets


def test_one_strength_on_the_scaled_table_is_one_each_on_the_plain_one() -> None:
    found, targets = made()
    alone, ridge = {"raw": 1e-3, "embedding": 1e-1}, 0.03
    plain, scaled = table_of(BOTH, found), table_of(BOTH, found, alone)
    fit = solve(
        Problem(CLIENTS, 42, ridge),
        [pooled([Sample(x, y) for x, y in zip(scaled.x, targets, strict=True)])],
        scaled.whitening,
        rounds=500,
        tolerance=1e-15,
    )
    found_logits = scaled.x[0] @ fit.point[:, :-1].T + fit.point[:, -1]
    x, y = torch.cat(plain.x), torch.cat(targets)
    each = torch.cat([torch.full((2,), ridge * 1e-2), torch.full((40,), ridge)]).double()

    def objective(flat: object) -> tuple[float, object]:
        w = torch.tensor(flat, dtype=torch.float64).view(CLIENTS, 43).requires_grad_()
        loss = torch.nn.functional.cross_entropy(x @ w[:, :-1].T + w[:, -1], y) + (each * w[:, :-1] ** 2).sum() / 2
        (slope,) = torch.autograd.grad(loss, w)
        return float(loss.detach()), slope.flatten().numpy()

    best = minimize(objective, torch.zeros(CLIENTS * 43).numpy(), jac=True, method="BFGS", options={"gtol": 1e-9})
    w = torch.tensor(best.x).view(CLIENTS, 43)
    wanted = plain.x[0] @ w[:, :-1].T + w[:, -1]
    assert (found_logits - wanted).abs().max() < 1e-5
    assert fit.loss == pytest.approx(best.fun, abs=1e-9)


def test_the_scale_only_changes_by_the_ratio_of_strengths() -> None:
    found, _ = made()
    plain = table_of(BOTH, found)
    same = table_of(BOTH, found, {"raw": 0.2, "embedding": 0.2})
    assert torch.equal(torch.cat(same.x), torch.cat(plain.x))
    louder = table_of(BOTH, found, {"raw": 1e-4, "embedding": 1e-2})
    assert torch.allclose(torch.cat(louder.x)[:, :2], 10 * torch.cat(plain.x)[:, :2])
    assert torch.equal(torch.cat(louder.x)[:, 2:], torch.cat(plain.x)[:, 2:])


def test_together_they_lose_to_neither_alone() -> None:
    found, targets = made(600)
    holdout = Holdout(5, 1)
    parts = holdout.draw([600] * CLIENTS, seed=0)

    def problem(width: int) -> Callable[[float], Problem]:
        return lambda ridge: Problem(CLIENTS, width, ridge)

    recipes = [Recipe((Raw(),)), Recipe((Embedding(),)), BOTH]
    choose = local_choice(targets, parts, problem)
    table, chosen, tried = choose_recipe(recipes, local_tables(found), choose, holdout, lambda _: None)
    assert table.recipe == BOTH
    assert chosen.loss <= min(one["held_out_loss"] for one in tried.values()) + 1e-3
    assert moments_of([Sample(x, torch.empty(0)) for x in table.x]).values.shape == (42,)
