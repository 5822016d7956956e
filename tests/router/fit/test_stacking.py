"""The stack is a convex fit."""

from __future__ import annotations

import torch

from feddrm.router.fit.stacking import Stack, client_curves, solve_stack
from feddrm.router.solver.problem import add
from refusal import refused


def test_the_stack_is_the_convex_optimum() -> None:
    g = torch.Generator().manual_seed(0)
    truth = torch.randn(400, 4, generator=g, dtype=torch.float64)
    y = torch.multinomial((2 * truth).softmax(1), 1, generator=g)[:, 0]
    good = (truth + 0.3 * torch.randn(400, 4, generator=g, dtype=torch.float64)).log_softmax(1)
    noise = torch.randn(400, 4, generator=g, dtype=torch.float64).log_softmax(1)
    clients = [(torch.stack([good, noise])[:, half], y[half]) for half in (slice(0, 150), slice(150, None))]
    stack = solve_stack(
        ["good", "noise"], lambda w: add([client_curves(models, labels, w) for models, labels in clients])
    )
    weights = torch.tensor(list(stack.weights.values()), dtype=torch.float64)
    sums = add([client_curves(models, labels, weights) for models, labels in clients])
    assert (sums["slope"] / 400).abs().max() < 1e-3  # a little ridge remains
    assert stack.weights["good"] > 1.2
    assert abs(stack.weights["noise"]) < 0.2
    answer = stack({"good": good, "noise": noise, "more": noise})
    assert torch.allclose(answer.exp().sum(1), torch.ones(400, dtype=torch.float64))
    with refused("'noise'"):
        stack({"good": good})
    assert Stack({"good": 1.0})({"good": good}).argmax(1).equal(good.argmax(1))
