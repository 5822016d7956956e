"""Helpers for tests of one client's round: a small network in float64, its batches, and torch's own optimiser."""

from __future__ import annotations

import torch
from torch import nn

from feddrm.data import Batch
from feddrm.engine import client_update, functional
from feddrm.methods import Method, Sgd, Slots, Stage, Tensors
from feddrm.models import Mlp, Net

CLASSES, COLUMNS, LR = 3, 4, torch.tensor(0.1, dtype=torch.float64)
SGD = Sgd(momentum=0.9, weight_decay=0.01, lr=LR)


def network(seed: int = 1) -> Net:
    return Mlp(hidden=(7,), branch=6).build((COLUMNS,), CLASSES, seed=seed).double()


NET = functional(network())


def leaves(seed: int = 1) -> Tensors:
    return {leaf: p.detach().clone() for leaf, p in network(seed).named_parameters()}


def batches(steps: int, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, 8, COLUMNS, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (steps, 8), generator=generator)
    return [Batch(a, b, torch.zeros_like(b), torch.ones_like(b, dtype=torch.bool)) for a, b in zip(x, y, strict=True)]


def work(method: Method, received: Tensors, private: Slots, steps: int = 4, *, sgd: Sgd = SGD) -> tuple[Tensors, Slots]:
    """One client's round: upload and what it keeps. Every phase sees batches of its own."""
    stage = Stage(steps)
    lists = [batches(phase.steps, seed) for seed, phase in enumerate(method.phases(stage))]
    update = client_update(method, NET, received, private, lists, stage, sgd)
    return update.upload, update.private


def slope(model: Tensors, batch: Batch) -> Tensors:
    """Gradient of the mean cross-entropy."""
    points = {leaf: value.clone().requires_grad_() for leaf, value in model.items()}
    loss = nn.functional.cross_entropy(NET(points, batch.x).logits, batch.y)
    return dict(zip(points, torch.autograd.grad(loss, list(points.values())), strict=True))


def optimised(net: Net, names: list[str], given: list[Batch], sgd: Sgd = SGD) -> None:
    """torch.optim.SGD in place, on the named parameters only."""
    parameters = dict(net.named_parameters())
    optimiser = torch.optim.SGD(
        [parameters[n] for n in names], lr=float(LR), momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    for batch in given:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(batch.x).logits, batch.y).backward()
        optimiser.step()


def close(one: Tensors, other: Tensors, atol: float = 1e-12) -> None:
    assert set(one) == set(other)
    for leaf, value in other.items():
        torch.testing.assert_close(one[leaf], value, rtol=0, atol=atol, msg=lambda m, leaf=leaf: f"{leaf}: {m}")
