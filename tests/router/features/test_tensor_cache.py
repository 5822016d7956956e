"""The cache of constant tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from feddrm.router.features.tensor_cache import CAPACITY, cached_tensor


def counting() -> tuple[list[int], object]:
    calls: list[int] = []

    @cached_tensor
    def constant(value: int, *, more: int = 0) -> Tensor:
        """A constant."""
        calls.append(value)
        return torch.tensor(float(value + more))

    return calls, constant


def test_a_tensor_is_made_once_for_every_set_of_arguments():
    calls, constant = counting()
    assert constant(1) is constant(1)
    assert constant(1, more=1) is not constant(1)
    assert float(constant(1, more=1)) == 2.0
    assert calls == [1, 1]
    assert constant.__doc__ == "A constant."


def test_a_full_cache_starts_anew():
    calls, constant = counting()
    for value in range(CAPACITY + 1):
        constant(value)
    constant(CAPACITY)
    assert calls == [*range(CAPACITY + 1)]
    constant(0)
    assert calls[-1] == 0


def test_a_tensor_made_in_inference_mode_can_be_used_with_gradients():
    _, constant = counting()
    with torch.inference_mode():
        made = constant(3)
    (made * torch.ones((), requires_grad=True)).backward()


def test_a_tensor_of_a_tracer_is_not_cached():
    class Traced(Tensor):
        pass

    calls = []

    @cached_tensor
    def constant() -> Tensor:
        calls.append(0)
        return torch.ones(2).as_subclass(Traced)

    constant()
    constant()
    assert len(calls) == 2
