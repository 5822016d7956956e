from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.models import LeNet, is_client_branch, is_trunk

STAGES = ("stage1", "stage2", "embedding")
SHARED = {"none": 0, "shallow": 1, "mid": 2, "deep": 3}  # the first so many stages


@pytest.mark.parametrize(
    ("sharing", "size"), [("none", 2_081_554), ("shallow", 2_079_058), ("mid", 2_027_666), ("deep", 1_075_090)]
)
def test_published_parameter_counts(sharing, size):
    assert sum(LeNet(sharing).build((3, 32, 32), 10, 8).sizes().values()) == size


def test_without_clients_sharing_means_nothing():
    nets = [LeNet(sharing).build((3, 32, 32), 10).state_dict() for sharing in SHARED]
    for net in nets[1:]:
        assert list(net) == list(nets[0])
        assert all(torch.equal(net[leaf], nets[0][leaf]) for leaf in net)


@pytest.mark.parametrize("sharing", SHARED)
def test_a_shared_leaf_moves_both_outputs_and_another_only_its_own(cases, sharing):
    case = cases[f"lenet-{sharing}"]
    net, x = case.shaken(), case.inputs(1)
    shared = {f"trunk.{stage}" for stage in STAGES[: SHARED[sharing]]}
    with torch.no_grad():
        before = net(x)
        for leaf, value in net.named_parameters():
            kept = value.clone()
            value.add_(torch.linspace(0.1, 0.7, value.numel(), dtype=value.dtype).view_as(value))
            after = net(x)
            value.copy_(kept)
            moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True) if isinstance(a, Tensor)]
            moves_logits, moves_features, moves_clients = moved
            both = ".".join(leaf.split(".")[:2]) in shared
            assert moves_logits is not is_client_branch(leaf), leaf
            assert moves_features is is_trunk(leaf), leaf
            assert moves_clients is (both or is_client_branch(leaf)), leaf


@pytest.mark.parametrize("sharing", SHARED)
def test_what_is_not_shared_is_duplicated(sharing):
    leaves = {leaf: v.shape for leaf, v in LeNet(sharing).build((3, 32, 32), 8, 8).named_parameters()}
    own = {leaf.removeprefix("client_project."): s for leaf, s in leaves.items() if leaf.startswith("client_project.")}
    trunk = {leaf.removeprefix("trunk."): s for leaf, s in leaves.items() if is_trunk(leaf)}
    unshared = {leaf: s for leaf, s in trunk.items() if leaf.split(".")[0] in STAGES[SHARED[sharing] :]}
    project = {leaf: s for leaf, s in leaves.items() if leaf.startswith("project.")}
    assert own == unshared | project


def test_deep_sharing_is_the_default():
    assert LeNet() == LeNet(sharing="deep")


def test_stages(cases):
    shapes = {
        name: tuple(t.shape) for name, t in cases["lenet-mid"].shaken()(cases["lenet-mid"].inputs(2)).stages.items()
    }
    assert shapes == {
        "input": (2, 3, 32, 32),
        "stage1": (2, 32, 14, 14),
        "stage2": (2, 64, 5, 5),
        "embedding": (2, 256),
    }


@pytest.mark.parametrize("sharing", SHARED)
def test_forward_by_its_definition(cases, sharing):
    """The same network written out from its weights alone, each path with the stages that are its own."""
    case = cases[f"lenet-{sharing}"]
    net, x = case.shaken(), case.inputs(2)
    w = dict(net.named_parameters())

    def conv(x: Tensor, name: str, groups: int) -> Tensor:
        x = F.conv2d(x, w[f"{name}.conv.weight"], w[f"{name}.conv.bias"])
        x = F.group_norm(x, groups, w[f"{name}.norm.weight"], w[f"{name}.norm.bias"]).clamp(min=0)
        return x.unfold(2, 2, 2).unfold(3, 2, 2).amax((-1, -2))

    def dense(x: Tensor, name: str) -> Tensor:
        x = F.linear(x, w[f"{name}.linear.weight"], w[f"{name}.linear.bias"])
        return F.layer_norm(x, x.shape[1:], w[f"{name}.norm.weight"], w[f"{name}.norm.bias"]).clamp(min=0)

    def path(one: str, two: str, three: str, project: str) -> Tensor:
        h = conv(conv(x, one, 8), two, 16).flatten(1)
        return dense(dense(dense(h, f"{three}.0"), f"{three}.1"), project)

    places = [("trunk" if i < SHARED[sharing] else "client_project") + f".{stage}" for i, stage in enumerate(STAGES)]
    u = path(*(f"trunk.{stage}" for stage in STAGES), "project")
    v = path(*places, "client_project.project")
    out = net(x)
    torch.testing.assert_close(out.logits, F.linear(u, w["head.weight"], w["head.bias"]))
    torch.testing.assert_close(out.client_logits, F.linear(v, w["client_head.weight"], w["client_head.bias"]))


def test_initial_weights_are_the_default_ones():
    net = LeNet("none").build((3, 32, 32), 10, 8)
    for leaf, bound in {  # uniform within 1 / sqrt(incoming connections)
        "trunk.stage1.conv.weight": 75**-0.5,
        "trunk.stage2.conv.weight": 800**-0.5,
        "client_project.embedding.0.linear.weight": 1600**-0.5,
        "project.linear.bias": 256**-0.5,
        "head.weight": 128**-0.5,
    }.items():
        value = net.get_parameter(leaf)
        assert 0.95 * bound < value.abs().max() <= bound, leaf


@pytest.mark.parametrize("shape", [(3, 31, 32), (1, 8, 8), (3, 96, 96)])
def test_other_sizes_are_refused(shape):
    message = f"lenet wants images of 32x32 pixels, not {shape[1]}x{shape[2]}: resize them or use the model resnet18"
    with pytest.raises(FeddrmError) as info:
        LeNet().build(shape, 10)
    assert str(info.value) == message


def test_unknown_sharing():
    with pytest.raises(FeddrmError) as info:
        LeNet("shalow").build((3, 32, 32), 10)
    assert str(info.value) == "unknown sharing 'shalow'; did you mean 'shallow'? (known: none, shallow, mid, deep)"
