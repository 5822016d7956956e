"""The sums that clients send."""

from __future__ import annotations

import pytest
import torch

from feddrm.router.solver import client_statistics
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


def test_sums_over_blocks_of_rows_are_those_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, point = clients_with_overlap()[1], torch.randn(4, 13, dtype=torch.float64)
    whole, scores = client_gradient(sample, point), client_scores(sample, point)
    monkeypatch.setitem(client_statistics.BLOCK, "cpu", 4 * 3)  # three rows at a time
    assert len(sample) % 3 or len(sample) > 3 * client_statistics.STRIPES
    for key, value in client_gradient(sample, point).items():
        assert torch.allclose(value, whole[key], atol=1e-10), key
    for key, value in client_scores(sample, point).items():
        assert torch.allclose(value, scores[key], atol=1e-10), key
