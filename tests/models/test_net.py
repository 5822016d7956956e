from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from feddrm.models import Dense, Mlp, Net, is_client_branch, is_head, is_project, is_trunk, of_this_thread, part


@pytest.mark.parametrize(
    ("leaf", "belongs"),
    [
        ("trunk.stem.conv.weight", is_trunk),
        ("trunk.head.weight", is_trunk),
        ("project.linear.weight", is_project),
        ("project.norm.bias", is_project),
        ("head.weight", is_head),
        ("head.bias", is_head),
        ("client_project.linear.weight", is_client_branch),
        ("client_project.head.weight", is_client_branch),
        ("client_head.bias", is_client_branch),
        ("header.weight", None),
        ("clients.weight", None),
    ],
)
def test_the_first_word_tells_the_part(leaf, belongs):
    predicates = (is_trunk, is_project, is_head, is_client_branch)
    assert [p for p in predicates if p(leaf)] == ([belongs] if belongs else [])


def test_part_strips_its_own_name_only():
    leaves = {"head.weight": torch.ones(1), "client_head.weight": torch.zeros(1), "project.head.weight": torch.zeros(1)}
    assert part(leaves, "head") == {"weight": torch.ones(1)}
    assert set(part(leaves, "project")) == {"head.weight"}
    assert part(leaves, "trunk") == {}


def test_dense_by_hand():
    layer = Dense(4, 2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 2]]))
        layer.linear.bias.copy_(torch.tensor([1.0, 0]))
        layer.norm.weight.copy_(torch.tensor([1.0, 3]))
        layer.norm.bias.copy_(torch.tensor([0.5, 0]))
    x = torch.tensor([[[4.0, 9], [9, 1]], [[-1, 9], [9, 7]]])  # maps of 2x2: (5, 2) and (0, 14) before the norm
    # Normalised: (1, -1) and (-1, 1); scaled and moved: (1.5, -3) and (-0.5, 3); then ReLU.
    torch.testing.assert_close(layer(x), torch.tensor([[1.5, 0], [0, 3]]), rtol=1e-4, atol=1e-4)


def test_a_network_of_ones_own():
    """Any sequence of named stages is a trunk; the client branch may leave at any of them."""
    trunk = nn.Sequential(OrderedDict(low=Dense(5, 6), embedding=Dense(6, 3)))
    net = Net(trunk, (Dense(3, 4), nn.Linear(4, 2)), (Dense(6, 4), nn.Linear(4, 7)), client_stage="low")
    out = net(torch.randn(2, 5))
    assert {name: tuple(t.shape) for name, t in out.stages.items()} == {
        "input": (2, 5),
        "low": (2, 6),
        "embedding": (2, 3),
    }
    assert out.client_logits.shape == (2, 7)
    torch.testing.assert_close(out.client_logits, net.client_head(net.client_project(out.stages["low"])))
    assert net.sizes() == {
        "trunk": 5 * 6 + 18 + 6 * 3 + 9,
        "project": 3 * 4 + 12,
        "head": 10,
        "client_project": 6 * 4 + 12,
        "client_head": 35,
    }


def test_a_thread_has_layers_of_its_own_and_shares_the_leaves() -> None:
    net = Mlp(hidden=(4,), branch=3).build((5,), 2, 3)
    own = of_this_thread(net)
    assert own is not net
    assert own is of_this_thread(net)
    assert all(a is b for a, b in zip(own.parameters(), net.parameters(), strict=True))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(of_this_thread, net).result() not in (net, own)
    copied = weakref.ref(own)
    del own, net
    gc.collect()
    assert copied() is None  # a thread keeps no network that nobody else has
