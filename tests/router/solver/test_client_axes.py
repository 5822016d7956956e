"""Axes of every client's own samples: nothing but the coordinates changes."""

from __future__ import annotations

import torch

from feddrm.router.solver.client_axes import OwnAxes
from feddrm.router.solver.client_statistics import BlockDiagonal, Sample, client_gradient

CLASSES, FEATURES = 3, 20


def clients(*sizes: int) -> list[Sample]:
    g = torch.Generator().manual_seed(0)
    return [
        Sample(
            torch.randn(n, FEATURES, generator=g, dtype=torch.float64),
            torch.randint(CLASSES, (n,), generator=g),
            torch.randn(n, CLASSES, generator=g, dtype=torch.float64),
        )
        for n in sizes
    ]


def test_own_axes_keep_logits_penalty_and_gradient() -> None:
    samples = clients(7, 12, 1)
    samples[1] = samples[1].rows(torch.arange(12) // 2)  # every sample twice: half of the axes have no direction
    axes = OwnAxes.of(samples)
    assert axes.width == 12
    features, turned = BlockDiagonal.of(samples), BlockDiagonal.of(axes.samples())
    # The gradient lies in the span of every client's samples, and so do all points of a fit.
    start = client_gradient(features, torch.zeros(9, FEATURES + 1, dtype=torch.float64))["gradient"]
    point = axes.turn(start)
    torch.testing.assert_close(axes.turn(point, back=True), start)
    torch.testing.assert_close(point.square().sum(), start.square().sum())
    expected, found = client_gradient(features, start), client_gradient(turned, point)
    torch.testing.assert_close(found["loss"], expected["loss"])
    torch.testing.assert_close(axes.turn(found["gradient"], back=True), expected["gradient"])


def test_moments_are_each_clients_share() -> None:
    samples = clients(7, 12)
    axes = OwnAxes.of(samples)
    trace = sum(float(s.x.square().sum()) for s in samples) / 19
    torch.testing.assert_close(float(axes.whitening(1).values.sum()), trace)
    assert axes.whitening(CLASSES).values.shape == (6, 12)
