"""Frozen models: the samples as features, random features, and heads on standardised features."""

from __future__ import annotations

import torch

from feddrm.models import Identity, Model
from refusal import refused


def test_the_features_are_the_samples():
    net = Identity().build((2, 3, 4), classes=3, clients=2)
    x = torch.randn(5, 2, 3, 4)
    features, _ = net.embed(x)
    assert torch.equal(features, x.flatten(1))
    assert not any(leaf.startswith("trunk.") for leaf, _ in net.named_parameters())


def test_heads_stand_on_standardised_features():
    net = Identity().build((4,), classes=3, clients=2)
    x = torch.randn(5, 4)
    with torch.no_grad():
        net.project.mean.fill_(2.0)
        net.project.scale.fill_(0.5)
        torch.testing.assert_close(net(x).logits, net.head((x - 2) / 0.5))
        torch.testing.assert_close(net(x).client_logits, net.client_head(x))


def test_random_features_replace_the_samples_and_follow_the_seed():
    model = Identity(features=2000)
    nets = [model.build((6,), classes=2, seed=seed) for seed in (0, 0, 1)]
    x = torch.randn(8, 6)
    rows = [net.embed(x)[0] for net in nets]
    assert rows[0].shape == (8, 2000)
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    # Their products approach the Gaussian kernel of the directions.
    unit = x / x.norm(dim=1, keepdim=True)
    kernel = torch.exp(-torch.cdist(unit, unit).square() / 2)
    torch.testing.assert_close(2 * rows[0] @ rows[0].T / 2000, kernel, atol=0.1, rtol=0)


def test_a_sample_of_zeros_has_random_features():
    assert bool(Identity(features=3).build((6,), classes=2).embed(torch.zeros(1, 6))[0].isfinite().all())


def test_impossible_numbers_of_features_are_refused():
    with refused("features=0", "at least one"):
        Identity(features=0).build((4,), classes=2)


def test_features_whose_gram_matrix_would_fill_the_memory_are_refused():
    with refused("150,528 features", "169 GiB", "--features 2000"):
        Identity().build((3, 224, 224), 2, 2)
    with refused("100,000 features", "75 GiB"):
        Identity(features=100_000).build((8,), 2, 2)
    Identity(features=200).build((3, 224, 224), 2, 2)


def test_frozen_models_are_marked():
    assert {name for name, model in Model.family.items() if model.frozen} == {"identity", "onnx"}
