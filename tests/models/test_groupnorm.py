"""GroupNorm with residual and ReLU: torch's arithmetic anywhere, and the GPU kernels against it."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddrm.models.groupnorm import _Fused, group_norm

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
CASES = list(itertools.product((False, True), (False, True)))


def leaves(channels: int, side: int, device: str) -> tuple[nn.GroupNorm, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(side)
    norm = nn.GroupNorm(16, channels)
    with torch.no_grad():
        norm.weight.copy_(1 + torch.randn(channels, generator=generator))
        norm.bias.copy_(torch.randn(channels, generator=generator))
    x, residual, pull = (torch.randn(3, 6, channels, side, side, generator=generator) + 0.5).to(device)
    return norm.to(device), x, residual, pull


def reference(norm: nn.GroupNorm, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
    out = F.group_norm(x, norm.num_groups, norm.weight.to(x), norm.bias.to(x), norm.eps)
    out = out if residual is None else out + residual
    return F.relu(out) if relu else out


@pytest.mark.parametrize(("relu", "carry"), CASES)
def test_plain(relu: bool, carry: bool) -> None:
    norm, x, residual, _ = leaves(32, 5, "cpu")
    carried = residual if carry else None
    assert torch.equal(group_norm(x, norm, relu=relu, residual=carried), reference(norm, x, carried, relu))


@pytest.mark.parametrize("carry", [False, True])
def test_no_zeros_are_made_for_outputs_without_a_gradient(carry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x, residual, pull = leaves(32, 5, "cpu")
    made: list[tuple[Any, ...]] = []

    def forward(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        return 2 * x, torch.zeros(1), torch.ones(1)

    def backward(gradient: Tensor, *_: Any) -> tuple[Tensor, ...]:
        return 2 * gradient, gradient, torch.zeros(32), torch.zeros(32)

    def watched(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        made.append(gradients)
        return plain(ctx, *gradients)

    plain = _Fused.backward
    monkeypatch.setattr(_Fused, "backward", staticmethod(watched))
    kernels = SimpleNamespace(forward=forward, backward=backward)
    monkeypatch.setitem(sys.modules, "feddrm.models.groupnorm_triton", kernels)
    carried = residual.requires_grad_() if carry else None
    out, *_ = _Fused.apply(x.requires_grad_(), norm.weight, norm.bias, carried, 16, norm.eps, True)
    inputs = [x, *([residual] if carry else [])]
    found = torch.autograd.grad(out, inputs, pull)
    assert [torch.equal(one, other) for one, other in zip(found, (2 * pull, pull), strict=False)] == [True] * len(
        inputs
    )
    ((gradient, *others),) = made
    assert gradient is not None
    assert others == [None, None]


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("relu", "carry"), CASES)
@pytest.mark.parametrize(("channels", "side"), [(64, 32), (128, 16), (256, 8), (512, 4), (512, 3), (64, 41), (32, 1)])
def test_kernels(channels: int, side: int, relu: bool, carry: bool) -> None:
    norm, x, residual, pull = leaves(channels, side, "cuda")
    x, residual, pull = (
        t.to(torch.bfloat16).contiguous(memory_format=torch.channels_last) for t in (x, residual, pull)
    )
    inputs = [x.requires_grad_(), norm.weight, norm.bias, *([residual.requires_grad_()] if carry else [])]
    out = group_norm(x, norm, relu=relu, residual=residual if carry else None)
    found = [out, *torch.autograd.grad(out, inputs, pull)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    wide = F.group_norm(exact[0], 16, exact[1], exact[2], norm.eps)
    wide = wide + exact[3] if carry else wide
    wide = F.relu(wide) if relu else wide
    wanted = [wide, *torch.autograd.grad(wide, exact, pull.double())]
    for one, other in zip(found, wanted, strict=True):
        # bfloat16 has 8 bits; sums over pixels and samples are float32.
        assert (one.double() - other).norm() < 4e-3 * other.norm()
        assert one.is_contiguous(memory_format=torch.channels_last) if one.dim() == 4 else True
