from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrm.errors import FeddrmError
from feddrm.models import Mlp

widths = st.integers(1, 9)


def size(inputs: int, hidden: tuple[int, ...], branch: int, outputs: tuple[int, ...]) -> int:
    """A dense layer has a matrix and three vectors: its bias and the norm's scale and shift."""
    steps = zip((inputs, *hidden), hidden, strict=False)
    return sum((i + 3) * o for i, o in steps) + sum((hidden[-1] + 3) * branch + (branch + 1) * o for o in outputs)


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(widths, min_size=1, max_size=3).map(tuple),
    hidden=st.lists(widths, min_size=1, max_size=4).map(tuple),
    branch=widths,
    classes=st.integers(2, 5),
    clients=st.none() | st.integers(2, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_widths_make_a_network(shape, hidden, branch, classes, clients, seed):
    net = Mlp(hidden, branch).build(shape, classes, clients, seed)
    x = torch.randn(2, *shape)
    out = net(x)
    outputs = (classes,) if clients is None else (classes, clients)
    assert sum(net.sizes().values()) == size(x[0].numel(), hidden, branch, outputs)
    assert out.logits.shape == (2, classes)
    assert [t.shape[1] for t in list(out.stages.values())[1:]] == list(hidden)
    assert [t.shape for t in net.parameters()] == [
        t.shape for t in Mlp(hidden, branch).build(shape, classes, clients).parameters()
    ]


def test_defaults():
    net = Mlp().build((1, 8, 8), 10, 8)
    assert net.sizes() == {
        "trunk": 67 * 128 + 131 * 64,
        "project": 67 * 64,
        "head": 650,
        "client_project": 67 * 64,
        "client_head": 520,
    }
    assert list(net(torch.zeros(1, 1, 8, 8)).stages) == ["input", "stage1", "embedding"]


def test_images_are_flattened(cases):
    net, x = cases["mlp-image"].shaken(), cases["mlp-image"].inputs()
    out = net(x)
    assert out.stages["input"].shape == (2, 1, 8, 8)
    assert torch.equal(net(x.flatten(1)).logits, out.logits)


def test_forward_by_its_definition(cases):
    net, h = cases["mlp-table"].shaken(), cases["mlp-table"].inputs()
    w = dict(net.named_parameters())
    out = net(h)
    for name in ("trunk.stage1", "trunk.embedding", "project"):
        h = F.linear(h, w[f"{name}.linear.weight"], w[f"{name}.linear.bias"])
        h = F.layer_norm(h, h.shape[1:], w[f"{name}.norm.weight"], w[f"{name}.norm.bias"]).clamp(min=0)
    torch.testing.assert_close(out.logits, F.linear(h, w["head.weight"], w["head.bias"]))


def test_initial_weights_are_the_default_ones():
    net = Mlp().build((64,), 10, 8)
    assert 0.95 / 8 < net.trunk.stage1.linear.weight.abs().max() <= 1 / 8
    assert 0.9 / 8 < net.client_head.weight.abs().max() <= 1 / 8


def test_lists_are_as_good_as_tuples():
    assert Mlp(hidden=[16, 8]) == Mlp(hidden=(16, 8))
    assert hash(Mlp(hidden=[16, 8])) == hash(Mlp(hidden=(16, 8)))


@pytest.mark.parametrize("hidden", [(), [], 128, "128"])
def test_hidden_must_be_widths(hidden):
    with pytest.raises(FeddrmError, match=r"hidden=.*: give a list of at least one width, such as \[128, 64\]"):
        Mlp(hidden=hidden).check((3,), 2)


def test_hidden_widths_are_positive():
    with pytest.raises(FeddrmError, match=r"^hidden=0: a layer needs a whole number of units, at least one$"):
        Mlp(hidden=(4, 0)).check((3,), 2)
