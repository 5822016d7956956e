"""Class means of features, from sums and counts."""

from __future__ import annotations

import torch

from feddrm.methods.prototypes import class_means, class_sums, distance_to_means

from .one_client import CLASSES, NET, batches, leaves


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
