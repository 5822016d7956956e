"""Which arithmetic a GPU uses; parameters and everything outside the network stay float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import SettingError
from feddrm.models import is_output
from feddrm.registry import nearest

PRECISIONS = ("auto", "bf16", "tf32", "fp32")


@dataclass(frozen=True)
class Arithmetic:
    """``autocast`` is what the network computes in (None: the parameters' own type), ``tf32`` allows rounded products.

    CPUs always use the parameters' own type: there float64 and float32 are exact references.
    """

    device: str = "cpu"
    autocast: torch.dtype | None = None
    tf32: bool = False

    def casting(self) -> AbstractContextManager[object]:
        """The network's products in ``autocast``, its sums in float32.

        Without the cache of casts: parameters are new tensors at every step, and the cache would
        keep them all.
        """
        return torch.autocast(
            torch.device(self.device).type,
            dtype=self.autocast,
            enabled=self.autocast is not None,
            cache_enabled=False,
        )

    def leaves(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The network's leaves with the matrices of its trunk and branches cast, all in a launch or two.

        One by one, as they are used, the casts and those of their gradients would be a tenth of a
        step's launches. Norms stay as they are, and heads too: see :class:`Net`.
        """
        if self.autocast is None:
            return dict(leaves)
        wide = {
            leaf: v for leaf, v in leaves.items() if v.dim() > 1 and not is_output(leaf) and v.dtype != self.autocast
        }
        out = dict(leaves)
        for trained in (False, True):
            # Kept apart: a frozen leaf among trained ones would be given a gradient nobody asked for.
            some = {leaf: v for leaf, v in wide.items() if v.requires_grad == trained}
            if some:
                narrow = _Cast.apply(self.autocast, *some.values())  # type: ignore[no-untyped-call]
                out.update(zip(some, narrow, strict=True))
        return out

    @contextmanager
    def set(self) -> Iterator[None]:
        """Torch's global switches, put back afterwards; convolutions try their algorithms once and keep the best."""
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
    """Several tensors to another type and their gradients back, each way together."""

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
    """``auto``: bfloat16 with float32 parameters on GPUs that have it, TF32 on others, float32 on CPUs."""
    if precision not in PRECISIONS:
        raise SettingError(
            f"unknown precision '{precision}'{nearest(precision, PRECISIONS)} (known: {', '.join(PRECISIONS)})"
        )
    if torch.device(device).type != "cuda":
        if precision not in ("auto", "fp32"):
            raise SettingError(f"precision '{precision}' is for GPUs: use 'fp32' on {device}, or --device cuda")
        return Arithmetic(device)
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "tf32"
    return Arithmetic(device, torch.bfloat16 if precision == "bf16" else None, tf32=precision != "fp32")
