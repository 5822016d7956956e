"""The sums that clients send."""

from __future__ import annotations

import torch

from feddrm.router.solver.client_statistics import client_gradient, client_scores, logits_at

from .made import clients_with_overlap


def test_messages_hold_no_sample() -> None:
    sample = clients_with_overlap()[0]
    message = client_gradient(sample, torch.zeros(4, 13, dtype=torch.float64))
    assert {key: tuple(value.shape) for key, value in message.items()} == {"count": (), "loss": (), "gradient": (4, 13)}
    assert set(client_scores(sample, torch.zeros(4, 13, dtype=torch.float64))) == {"count", "loss", "correct"}


def test_the_gradient_is_autograds() -> None:
    sample = clients_with_overlap()[1]
    point = torch.randn(4, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits_at(sample.x, point), sample.y, reduction="sum")
    (expected,) = torch.autograd.grad(loss, point)
    message = client_gradient(sample, point.detach())
    assert torch.allclose(message["gradient"], expected, atol=1e-10)
    assert torch.allclose(message["loss"], loss.detach(), atol=1e-10)
