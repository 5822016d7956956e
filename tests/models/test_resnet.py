from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from feddrm.errors import FeddrmError
from feddrm.models import Net, ResNet18, ResNet18Retina
from feddrm.models.resnet import Block


@pytest.fixture(scope="module")
def fresh() -> Net:
    """As it starts; not to be changed."""
    return ResNet18().build((3, 32, 32), 10, 8)


def sizes(model: ResNet18, side: int, classes: int, clients: int | None = None) -> dict[str, int]:
    with torch.device("meta"):  # shapes alone: no time for weights
        return model.network((3, side, side), classes, clients).sizes()


@pytest.mark.parametrize(
    ("classes", "plain", "feddrm"),
    [(10, 11_303_242, 11_437_138), (20, 11_305_812, 11_439_708), (100, 11_326_372, 11_460_268)],
)
def test_published_parameter_counts(classes, plain, feddrm):
    assert sum(sizes(ResNet18(), 32, classes).values()) == plain
    assert sum(sizes(ResNet18(), 32, classes, 8).values()) == feddrm


def test_parameter_counts_of_the_parts(fresh):
    assert list(fresh.sizes().values())[:3] == [11_168_832, 131_840, 2_570]


@pytest.mark.parametrize(("clients", "size"), [(8, 133_896), (16, 135_952), (24, 138_008), (32, 140_064)])
def test_parameter_counts_of_the_client_branch(clients, size):
    parts = sizes(ResNet18(), 32, 10, clients)
    assert parts["client_project"] + parts["client_head"] == size


def test_retina_parameter_counts():
    assert sum(sizes(ResNet18Retina(), 96, 2).values()) == 13_530_690
    assert sum(sizes(ResNet18Retina(), 96, 2, 3).values()) == 15_893_061


def test_cost_of_a_forward_pass(fresh):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        fresh(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * 555_684_352  # multiply-adds of convolutions and linear layers: 555.7M


def normal(weight: Tensor, variance: float) -> None:
    """Mean, spread and tails of a normal sample of this size, within five standard errors."""
    n, std = weight.numel(), math.sqrt(variance)
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)
    assert abs(weight.std().item() / std - 1) < 5 / math.sqrt(2 * n)
    assert weight.abs().max() > 2 * std  # a uniform distribution would end at 1.73
    assert abs((weight.abs() < std).double().mean().item() - 0.6827) < 5 * 0.4655 / math.sqrt(n)


def test_initial_weights(fresh):
    seen = {nn.Conv2d: 0, nn.Linear: 0}
    for module in fresh.modules():
        if isinstance(module, nn.Conv2d):
            normal(module.weight, 2 / (module.kernel_size[0] ** 2 * module.out_channels))
            assert module.bias is None
        elif isinstance(module, nn.Linear):
            normal(module.weight, 2 / module.in_features)
            assert module.bias.count_nonzero() == 0
        else:
            continue
        seen[type(module)] += 1
    assert seen == {nn.Conv2d: 20, nn.Linear: 4}


def test_initial_norms(fresh):
    norms = {name: m for name, m in fresh.named_modules() if isinstance(m, nn.GroupNorm | nn.LayerNorm)}
    assert len(norms) == 22
    silent = {name for name, m in norms.items() if m.weight.count_nonzero() == 0}
    assert silent == {f"trunk.stage{s}.{b}.second.norm" for s in range(1, 5) for b in range(2)}
    assert all(torch.equal(m.weight, torch.ones_like(m.weight)) for name, m in norms.items() if name not in silent)
    assert all(m.bias.count_nonzero() == 0 for m in norms.values())
    assert all(m.num_groups == 16 for m in norms.values() if isinstance(m, nn.GroupNorm))


def test_new_blocks_are_their_shortcuts():
    x = torch.rand(2, 32, 6, 6)
    assert torch.equal(Block(32, 32)(x), x)
    for outputs, stride in ((32, 2), (64, 1), (64, 2)):
        block = Block(32, outputs, stride)
        assert torch.equal(block(x), F.relu(block.shortcut(x)))
        assert block(x).shape == (2, outputs, 6 // stride, 6 // stride)


def test_a_new_network_is_the_chain_of_its_shortcuts(fresh):
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        stages = fresh(x).stages
        assert torch.equal(stages["stage1"], stages["stem"])
        for before, after in (("stage1", "stage2"), ("stage2", "stage3"), ("stage3", "stage4")):
            shortcut = getattr(fresh.trunk, after)[0].shortcut
            assert torch.equal(stages[after], F.relu(shortcut(stages[before])))


def test_stages(fresh):
    with torch.no_grad():
        shapes = {name: tuple(t.shape[1:]) for name, t in fresh(torch.zeros(1, 3, 32, 32)).stages.items()}
    assert shapes == {
        "input": (3, 32, 32),
        "stem": (64, 32, 32),
        "stage1": (64, 32, 32),
        "stage2": (128, 16, 16),
        "stage3": (256, 8, 8),
        "stage4": (512, 4, 4),
        "embedding": (512,),
    }


def test_retina_stages():
    net = ResNet18Retina().build((3, 96, 96), 2)
    with torch.no_grad():
        stages = net(torch.randn(1, 3, 96, 96)).stages
    assert stages["stage4"].shape == (1, 512, 12, 12)
    assert stages["embedding"].shape == (1, 4608)
    cell = stages["stage4"][0, 7, 4:8, 8:12].mean()  # channel 7, row 1, column 2 of 3x3
    torch.testing.assert_close(stages["embedding"][0, 7 * 9 + 5], cell)


@pytest.mark.parametrize(
    ("model", "shape", "features"),
    [
        (ResNet18(24), (1, 8, 8), 512),
        (ResNet18(24), (3, 33, 41), 512),
        (ResNet18Retina(24), (3, 32, 32), 512),
        (ResNet18Retina(24), (4, 65, 57), 2048),  # a last map of 9x8 cells: 2x2 windows, one row left over
        (ResNet18Retina(24), (3, 100, 200), 512 * 3 * 6),
    ],
)
def test_other_sizes_and_channels(model, shape, features):
    with torch.device("meta"):
        net = model.network(shape, 5, 2)
        out = net(torch.empty(1, *shape))
    assert out.features.shape == (1, features)
    assert out.logits.shape == (1, 5)


@pytest.mark.parametrize(("model", "side", "least"), [(ResNet18(), 7, 8), (ResNet18Retina(), 31, 32)])
def test_images_too_small(model, side, least):
    message = (
        f"{model.name} needs images of at least {least}x{least} pixels, not {least}x{side}: "
        "enlarge them or use the model mlp"
    )
    with pytest.raises(FeddrmError) as info:
        model.build((3, least, side), 2)
    assert str(info.value) == message
    model.check((3, least, least), 2)


def test_forward_by_its_definition(cases):
    """The same network written out from its weights alone: groups, strides, paddings and order."""
    net = cases["resnet18"].shaken()
    w = dict(net.named_parameters())

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = w[f"{name}.conv.weight"]
        x = F.conv2d(x, kernel, stride=stride, padding=1 if kernel.shape[-1] == 3 else 0)
        groups = x.reshape(len(x), 16, -1)
        groups = (groups - groups.mean(2, keepdim=True)) / (groups.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        scale, shift = (w[f"{name}.norm.{leaf}"].view(-1, 1, 1) for leaf in ("weight", "bias"))
        return groups.view_as(x) * scale + shift

    def dense(x: Tensor, name: str) -> Tensor:
        z = x @ w[f"{name}.linear.weight"].T + w[f"{name}.linear.bias"]
        z = (z - z.mean(1, keepdim=True)) / (z.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        return (z * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"]).clamp(min=0)

    x = cases["resnet18"].inputs()
    h = conv(x, "trunk.stem").clamp(min=0)
    for stage in range(1, 5):
        for block in range(2):
            name = f"trunk.stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            carried = conv(h, f"{name}.shortcut", stride) if stride == 2 else h
            h = conv(conv(h, f"{name}.first", stride).clamp(min=0), f"{name}.second")
            h = (h + carried).clamp(min=0)
    b = h.mean((2, 3))
    out = net(x)
    torch.testing.assert_close(out.features, b)
    torch.testing.assert_close(out.logits, dense(b, "project") @ w["head.weight"].T + w["head.bias"])
    want = dense(b, "client_project") @ w["client_head.weight"].T + w["client_head.bias"]
    torch.testing.assert_close(out.client_logits, want)
