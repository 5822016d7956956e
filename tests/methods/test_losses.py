"""Losses over masked batches, in closed form."""

from __future__ import annotations

import math

import torch

from feddrm.methods.losses import cross_entropy, distance, masked_mean

MASK = torch.tensor([True, False, True])


def test_masked_samples_do_not_count():
    assert float(masked_mean(torch.tensor([1.0, 100.0, 3.0]), MASK)) == 2.0
    logits = torch.tensor([[0.0, 0.0], [50.0, -50.0], [0.0, 0.0]])
    assert float(cross_entropy(logits, torch.tensor([0, 1, 1]), MASK)) == float(torch.tensor(math.log(2)))


def test_the_mean_over_no_sample_is_zero_and_so_is_its_gradient():
    """The second half of a short last batch may be empty."""
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    mean = masked_mean(values, torch.tensor([False, False]))
    mean.backward()
    assert float(mean.detach()) == 0.0
    assert values.grad.tolist() == [0.0, 0.0]


def test_distance_is_half_the_squared_norm_over_common_or_named_leaves():
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0]), "only_here": torch.tensor([9.0])}
    other = {"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0])}
    assert float(distance(one, other)) == 0.5 * (1 + 4 + 4)
    assert float(distance(one, other, ["b"])) == 2.0
