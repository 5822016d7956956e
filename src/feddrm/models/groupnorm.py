"""GroupNorm, residual and ReLU as one operation, by a Triton kernel on GPUs.

On a GPU in bfloat16 the norms, not the convolutions, would take most of a network's time, because torch
computes them in float32, one operation after another. The Triton kernels read every activation twice and
write it once. On other devices and in other types torch's own operations are used.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def group_norm(x: Tensor, norm: nn.GroupNorm, *, relu: bool, residual: Tensor | None = None) -> Tensor:
    """ReLU(GroupNorm(x) + residual) for x [n, channels, height, width]; ``residual`` and ``relu`` are optional."""
    by_kernel = x.is_cuda and x.dtype == torch.bfloat16 and not torch.compiler.is_compiling()  # a compiler fuses itself
    if by_kernel and _fits(x.shape[1], norm.num_groups):
        fused = _Fused.apply(x, norm.weight, norm.bias, residual, norm.num_groups, norm.eps, relu)  # type: ignore[no-untyped-call]
        return cast(Tensor, fused[0])
    out: Tensor = norm(x)
    if residual is not None:
        out = out + residual
    return F.relu(out) if relu else out


def _fits(channels: int, groups: int) -> bool:
    """Whether the kernels accept these sizes: they work on blocks of channels whose sizes are powers of two."""
    per_group = channels // groups
    return channels % 32 == 0 and per_group & (per_group - 1) == 0 and _has_triton()


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


class _Fused(torch.autograd.Function):
    """The kernels as one differentiable operation. Mean and deviation are outputs, so that backward can use them."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, groups: int, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        from feddrm.models.groupnorm_triton import forward

        x = x.contiguous(memory_format=torch.channels_last)
        if residual is not None:
            residual = residual.to(x.dtype).contiguous(memory_format=torch.channels_last)
        return forward(x, weight, bias, residual, groups, eps, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, residual, _, _, relu = inputs
        y, mean, deviation = output
        ctx.mark_non_differentiable(mean, deviation)
        # Otherwise zeros are made as gradients of mean and deviation: 40 launches in a step of ResNet-18.
        ctx.set_materialize_grads(False)
        ctx.relu, ctx.residual = relu, residual is not None
        # y is needed only with a residual; without one its sign follows from x.
        ctx.save_for_backward(x, weight, bias, mean, deviation, y if relu and ctx.residual else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from feddrm.models.groupnorm_triton import backward

        x, weight, bias, mean, deviation, y = ctx.saved_tensors
        last = torch.channels_last
        gradient = gradients[0].to(x.dtype).contiguous(memory_format=last)
        dx, masked, dweight, dbias = backward(
            gradient, x.contiguous(memory_format=last), y, weight, bias, mean, deviation, ctx.relu
        )
        dresidual = (masked if ctx.relu else gradient) if ctx.residual else None
        return dx, dweight, dbias, dresidual, None, None, None
