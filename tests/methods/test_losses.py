"""Losses and class means over masked batches, in closed form."""

from __future__ import annotations

import math

import torch

from feddrm.methods.losses import class_means, class_sums, cross_entropy, distance, distance_to_means, masked_mean

from .one_client import CLASSES, NET, batches, leaves

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


def test_sums_and_counts_leave_out_masked_samples():
    (batch,) = batches(1)
    batch = batch._replace(mask=torch.arange(8) < 5)
    sums = class_sums(NET, leaves(), batch)
    features = NET(leaves(), batch.x).features
    for k in range(CLASSES):
        chosen = (batch.y == k) & batch.mask
        assert sums["counts"][k] == chosen.sum()
        torch.testing.assert_close(sums["sums"][k], features[chosen].sum(0), rtol=0, atol=1e-12)


def test_a_class_without_samples_has_no_mean_and_adds_no_distance():
    means = class_means(torch.tensor([[2.0, 4.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0]))
    assert means["prototypes"][0].tolist() == [1.0, 2.0]
    assert means["seen"].tolist() == [True, False]
    (batch,) = batches(1)
    batch = batch._replace(y=torch.tensor([0, 1]), mask=torch.tensor([True, True]))
    features = torch.tensor([[2.0, 2.0], [7.0, 7.0]])
    assert float(distance_to_means(features, means, batch)) == 0.5 * (1 + 0) / 2
