"""The arithmetic of the network on a GPU. Parameters and everything outside the network stay float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import SettingError
from feddrm.models import is_output
from feddrm.registry import check_choice

PRECISIONS = ("auto", "bf16", "tf32", "fp32")


@dataclass(frozen=True)
class Arithmetic:
    """``autocast`` is the type that the network computes in (None: the parameters' type); ``tf32`` allows TF32.

    A CPU always uses the type of the parameters, so that float64 and float32 can serve as references.
    """

    device: str = "cpu"
    autocast: torch.dtype | None = None
    tf32: bool = False

    def casting(self) -> AbstractContextManager[object]:
        """A block in which the network computes products in ``autocast`` and sums in float32.

        The cache of casts is off: parameters are new tensors at every step, and the cache would keep
        them all in memory.
        """
        return torch.autocast(
            torch.device(self.device).type,
            dtype=self.autocast,
            enabled=self.autocast is not None,
            cache_enabled=False,
        )

    def leaves(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The leaves with the matrices of trunk and branches cast, by one or two launches.

        Cast one by one when they are used, they and their gradients would take a tenth of a step's
        launches. Norms and heads are not cast: see :class:`Net`.
        """
        if self.autocast is None:
            return dict(leaves)
        wide = {
            leaf: v for leaf, v in leaves.items() if v.dim() > 1 and not is_output(leaf) and v.dtype != self.autocast
        }
        out = dict(leaves)
        for trained in (False, True):
            # Two groups: among trained leaves a frozen one would get a gradient that is not needed.
            some = {leaf: v for leaf, v in wide.items() if v.requires_grad == trained}
            if some:
                narrow = _Cast.apply(self.autocast, *some.values())  # type: ignore[no-untyped-call]
                out.update(zip(some, narrow, strict=True))
        return out

    @contextmanager
    def set(self) -> Iterator[None]:
        """Set torch's global switches for a block; convolutions try their algorithms once and use the best."""
        if torch.device(self.device).type != "cuda":
            yield
            return
        backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
        before = [backend.fp32_precision for backend in backends], torch.backends.cudnn.benchmark
        try:
            for backend in backends:
                backend.fp32_precision = "tf32" if self.tf32 else "ieee"
            torch.backends.cudnn.benchmark = True
            yield
        finally:
            for backend, value in zip(backends, before[0], strict=True):
                backend.fp32_precision = value
            torch.backends.cudnn.benchmark = before[1]


class _Cast(torch.autograd.Function):
    """Cast several tensors by one launch, and their gradients back by another."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [value.dtype for value in values]
        return _as(values, [dtype] * len(values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_as(gradients, ctx.dtypes)


def _as(values: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    out = [torch.empty_like(value, dtype=dtype) for value, dtype in zip(values, dtypes, strict=True)]
    torch._foreach_copy_(out, list(values))
    return tuple(out)


def arithmetic(precision: str, device: str) -> Arithmetic:
    """The arithmetic of a precision; ``auto`` is bfloat16 on GPUs that have it, TF32 on others, float32 on CPUs."""
    check_choice("precision", precision, PRECISIONS)
    if torch.device(device).type != "cuda":
        if precision not in ("auto", "fp32"):
            raise SettingError(f"precision '{precision}' is for GPUs: use 'fp32' on {device}, or --device cuda")
        return Arithmetic(device)
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "tf32"
    return Arithmetic(device, torch.bfloat16 if precision == "bf16" else None, tf32=precision != "fp32")
