"""Tensors made of constants, kept between batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
ROOM = 16


def kept(make: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Make a tensor once for every set of arguments: to bring it to a GPU anew, every batch would wait for all before.

    What is made while an exporter traces stands for a tensor and holds no numbers: it is not kept.
    """
    held: dict[object, Tensor] = {}

    @wraps(make)
    def get(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        key = (args, tuple(sorted(kwargs.items())))
        if (found := held.get(key)) is not None:
            return found
        with torch.inference_mode(False):  # one made for a query may be wanted where gradients are
            found = make(*args, **kwargs)
        if type(found) is Tensor:
            if len(held) >= ROOM:
                held.clear()
            held[key] = found
        return found

    return get
