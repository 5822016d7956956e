"""A convolution for CPUs on which torch's own is slow.

On Linux for ARM, oneDNN's gradients take a generic path, and its forward pass is slow for many channels.
Built from faster operations (NNPACK's transforms, a matrix product), a training step of LeNet costs
260 ms of CPU time instead of 324 (batch 128, Neoverse-N1, torch 2.13). On x86 and on GPUs torch's own
convolution is used.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOW_LIBRARY = platform.machine() == "aarch64"  # macOS reports arm64; it was not measured
NNPACK_FROM = 16  # images and channels: with fewer, NNPACK's transforms cost more than they save
NNPACK_SIDE = 16  # the largest kernel that NNPACK accepts


class Convolution(nn.Conv2d):
    """``nn.Conv2d`` of stride one without padding."""

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        super().__init__(inputs, outputs, side)

    def forward(self, x: Tensor) -> Tensor:
        if not SLOW_LIBRARY or x.device.type != "cpu" or self.bias is None or _transformed():
            return super().forward(x)
        out: Tensor = Convolve.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


class Convolve(torch.autograd.Function):
    """``F.conv2d`` with gradients from faster operations."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return convolve(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        x, slope = x.contiguous(), slope.contiguous()
        back = None
        if ctx.needs_input_grad[0]:
            patches = torch.bmm(weight.flatten(1).t().expand(len(x), -1, -1), slope.flatten(2))
            back = F.fold(patches, x.shape[2:], weight.shape[2:])
        # The gradient of the weights is a convolution in which images and channels change places.
        weights = convolve(x.transpose(0, 1), slope.transpose(0, 1)).transpose(0, 1)
        return back, weights, slope.sum((0, 2, 3))


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.conv2d``, by NNPACK's transforms where they are faster."""
    faster = min(len(x), weight.shape[1]) >= NNPACK_FROM and weight.shape[-1] <= NNPACK_SIDE
    # is_available also initialises NNPACK.
    if faster and x.dtype == torch.float32 and torch.backends.nnpack.is_available():  # type: ignore[no-untyped-call]
        return torch._nnpack_spatial_convolution(x, weight, bias, padding=0)
    return F.conv2d(x, weight, bias)


def _transformed() -> bool:
    """Whether ``torch.vmap`` or a compiler is at work: neither knows NNPACK."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
