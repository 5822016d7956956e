from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from feddrm.models import convolution
from feddrm.models.convolution import Convolution, Convolve


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def inputs() -> list[Tensor]:
    return [random(4, 3, 9, 8).to(memory_format=torch.channels_last), random(5, 3, 5, 5), random(5)]


def test_value_and_slopes_equal_the_library(inputs: list[Tensor]) -> None:
    points = [value.requires_grad_() for value in inputs]
    ours, theirs = Convolve.apply(*points), F.conv2d(*points)
    assert torch.equal(ours, theirs)
    up = random(*ours.shape, seed=1)
    for mine, wanted in zip(
        torch.autograd.grad(ours, points, up), torch.autograd.grad(theirs, points, up), strict=True
    ):
        assert mine.shape == wanted.shape
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)


def test_second_derivatives(inputs: list[Tensor]) -> None:
    small = [inputs[0][:2, :, :6, :6], inputs[1][:2], inputs[2][:2]]
    assert torch.autograd.gradgradcheck(Convolve.apply, [value.clone().requires_grad_() for value in small])


def test_the_first_layer_computes_no_slope_of_its_input(inputs: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = inputs
    out = Convolve.apply(x, weight.requires_grad_(), bias.requires_grad_())
    calls = []
    plain = F.conv2d
    monkeypatch.setattr(convolution.F, "conv2d", lambda *a, **k: (calls.append(1), plain(*a, **k))[1])
    torch.autograd.grad(out.sum(), [weight, bias])
    assert len(calls) == 1


@pytest.mark.parametrize("shape", [(3, 32, 32), (32, 14, 14)], ids=["few channels", "many channels"])
def test_single_precision_is_as_exact_as_it_can_be(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through NNPACK (many channels, where it is built in) and without it."""
    monkeypatch.setattr(convolution, "SLOW_LIBRARY", True)
    layer, x = Convolution(shape[0], 64, 5), random(16, *shape).float()
    x.requires_grad_()
    exact, exact_x = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    out, wanted = layer(x), F.conv2d(exact_x, exact.weight, exact.bias)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-5)
    up = random(*out.shape, seed=1)
    slopes = torch.autograd.grad(out, [x, *layer.parameters()], up.float())
    for slope, want in zip(slopes, torch.autograd.grad(wanted, [exact_x, *exact.parameters()], up), strict=True):
        torch.testing.assert_close(slope.double(), want, rtol=0, atol=1e-5 * want.abs().max().item())


def test_many_networks_at_once_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """vmap does not know NNPACK, and warns (an error here): the library's convolution stands in."""
    monkeypatch.setattr(convolution, "SLOW_LIBRARY", True)
    layer, x = Convolution(16, 4, 5), random(16, 16, 9, 9).float()
    stacked = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in layer.named_parameters()}

    def loss(leaves: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, leaves, (x,)).square().sum()

    slopes = vmap(grad(loss))(stacked)
    for i in range(2):
        one = {name: value[i].requires_grad_() for name, value in stacked.items()}
        for name, slope in zip(one, torch.autograd.grad(loss(one), list(one.values())), strict=True):
            torch.testing.assert_close(slopes[name][i], slope, rtol=1e-4, atol=1e-4 * slope.abs().max().item())


@pytest.mark.parametrize("generic", [True, False])
def test_the_layer_is_the_same_either_way(generic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "SLOW_LIBRARY", generic)
    layer, x = Convolution(3, 5, 5).double(), random(2, 3, 9, 9)
    out = layer(x)
    assert ("Convolve" in type(out.grad_fn).__name__) is generic
    assert torch.equal(out, F.conv2d(x, layer.weight, layer.bias))
    with torch.no_grad():
        assert torch.equal(layer(x), out)
