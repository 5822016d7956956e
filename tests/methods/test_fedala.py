"""FedALA: mixing weights are learned as in the paper, as released, and as first published."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.methods import FedALA, Slots
from feddrm.methods.fedala import mix
from feddrm.models import is_head

from .one_client import LR, batches, close, leaves, network, optimised, slope, work


def own_and_ones(method: FedALA) -> Slots:
    _, private = method.start(leaves(2))
    return private


def test_mixing_weights_are_learned_between_zero_and_one():
    method = FedALA()
    _, kept = work(method, leaves(1), own_and_ones(method), 10)
    weights = torch.cat([w.flatten() for w in kept["mix"].values()])
    assert set(kept["mix"]) == set(leaves())
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert (weights < 1).double().mean() > 0.2
    assert ((weights > 0) & (weights < 1)).any()


def test_the_first_mixing_step_in_closed_form():
    method, received = FedALA(), leaves(1)
    private = own_and_ones(method)
    batch = batches(1, seed=0)[0]
    gradient = slope(received, batch)  # all weights one: the mix is the received model
    _, kept = work(method, received, private, 2)
    for leaf, weight in kept["mix"].items():
        moved = 1 - LR * gradient[leaf] * (received[leaf] - private["personal"][leaf])  # and no decay
        torch.testing.assert_close(weight, moved.clamp(0, 1), rtol=0, atol=1e-13)


def test_mixing_weights_stay_one_as_in_the_released_code():
    method, received = FedALA(learn_mix=False), leaves(1)
    upload, kept = work(method, received, own_and_ones(method), 4)
    assert all((weight == 1).all() for weight in kept["mix"].values())
    net = network(1)
    optimised(net, list(received), batches(2))  # FedAvg with half of the steps
    close(upload, dict(net.named_parameters()))
    close(kept["personal"], upload, atol=0)


def test_the_original_mixes_the_last_layers_only():
    method, received = FedALA(variant="original", layers=2), leaves(1)
    private = own_and_ones(method)
    _, kept = work(method, received, private, 4)
    assert set(kept["mix"]) == {"head.weight", "head.bias"}
    assert any((weight < 1).any() for weight in kept["mix"].values())
    served = method.serve(received, kept)
    close(served, mix({**kept, "shared": received}), atol=0)
    assert all(served[leaf] is received[leaf] for leaf in received if not is_head(leaf))


def test_the_original_mixes_at_rate_one_without_momentum_or_decay():
    method, received = FedALA(variant="original"), leaves(1)
    private = own_and_ones(method)
    own, weights = private["personal"], {leaf: w.clone() for leaf, w in private["mix"].items()}
    for batch in batches(3, seed=0):
        mixed = {**received, **{leaf: own[leaf] + (received[leaf] - own[leaf]) * w for leaf, w in weights.items()}}
        gradient = slope(mixed, batch)
        weights = {leaf: (w - gradient[leaf] * (received[leaf] - own[leaf])).clamp(0, 1) for leaf, w in weights.items()}
    _, kept = work(method, received, private, 6)
    close(kept["mix"], weights)
    assert any(((w > 0) & (w < 1)).any() for w in weights.values())


@given(st.floats(0, 1))
def test_the_mix_goes_from_the_personal_to_the_received_model(share):
    own, received = leaves(2), leaves(1)
    weights = {leaf: torch.full_like(value, share) for leaf, value in own.items()}
    mixed = mix({"personal": own, "shared": received, "mix": weights})
    close(mixed, {leaf: (1 - share) * own[leaf] + share * received[leaf] for leaf in own}, atol=1e-14)
