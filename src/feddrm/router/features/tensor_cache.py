"""A cache for constant tensors, so that batches share them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
CAPACITY = 16


def cached_tensor(make: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Make a tensor once for every set of arguments.

    Copying a constant to a GPU again in every batch would wait for all work before it. A tensor made while an
    exporter traces holds no numbers and is not cached.
    """
    cache: dict[object, Tensor] = {}

    @wraps(make)
    def get(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        key = (args, tuple(sorted(kwargs.items())))
        if (cached := cache.get(key)) is not None:
            return cached
        with torch.inference_mode(False):  # a tensor made for a query may be needed with gradients later
            tensor = make(*args, **kwargs)
        if type(tensor) is Tensor:
            if len(cache) >= CAPACITY:
                cache.clear()
            cache[key] = tensor
        return tensor

    return get
