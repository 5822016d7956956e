"""Fixed-point numbers modulo 2^64: sums of them are exact, so masks cancel to the last bit.

========  =======================  ==============================  ========================
type      words of 64 bits         largest value with m sites      rounding error per site
========  =======================  ==============================  ========================
float32   1: multiples of 2^-40    2^22 / m (1.4e6 with 3 sites)   2^-41 (4.5e-13)
float64   2: of 2^-12, of 2^-64    2^50 / m (3.7e14 with 3 sites)  2^-65, or that of float64
integers  1                        2^62 / m                        none
========  =======================  ==============================  ========================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from feddrm.deploy.rotating_log import log
from feddrm.errors import FeddrmError
from feddrm.methods import Tensors

LARGEST_SUM = 2.0**62
WORD_BYTES = 8
ONE_WORD, COARSE, FINE = 2.0**40, 2.0**12, 2.0**64
BLOCK = 2**15
Words = np.ndarray[tuple[int], np.dtype[np.uint64]]


def encode(tensors: Mapping[str, Tensor], sites: int, weight: float = 1.0) -> Words:
    """All tensors as words, one after another, in a sum of this many sites. Floats are multiplied by ``weight``.

    A value that could make the sum overflow is refused.
    """
    words = np.empty(count_words(tensors), np.uint64)
    at = 0
    for name, value in tensors.items():
        flat, size = value.detach().cpu().contiguous().numpy().reshape(-1), value.numel() * _words_each(value)
        if flat.size:
            _check_range(name, flat, _unit(value) * (weight if value.is_floating_point() else 1.0), sites)
        _write(words[at : at + size].view(np.int64), flat, value.dtype, weight)
        at += size
    return words


def decode(words: Words, form: Mapping[str, Tensor], weight: float = 1.0) -> Tensors:
    """Tensors with the names, shapes and types of ``form``. Floats are divided by ``weight``."""
    out: Tensors = {}
    at = 0
    for name, value in form.items():
        size, each = value.numel(), _words_each(value)
        parts = words[at : at + size * each].view(np.int64)
        at += size * each
        flat: np.ndarray
        if each == 2:
            flat = (parts[:size] / COARSE + parts[size:] / FINE) / weight
        elif value.is_floating_point():
            flat = np.empty(size, np.float32)
            for block in _blocks(size):
                flat[block] = parts[block] * (1 / ONE_WORD) / weight
        else:
            flat = parts.copy()
        out[name] = torch.from_numpy(flat).to(value.dtype).reshape(value.shape)
    return out


def count_words(tensors: Mapping[str, Tensor]) -> int:
    """How many words these tensors take."""
    return sum(value.numel() * _words_each(value) for value in tensors.values())


def _words_each(value: Tensor) -> int:
    return 2 if value.dtype == torch.float64 else 1


def _unit(value: Tensor) -> float:
    """How many units of the first word make one."""
    return 1.0 if not value.is_floating_point() else COARSE if value.dtype == torch.float64 else ONE_WORD


def _check_range(name: str, flat: np.ndarray, factor: float, sites: int) -> None:
    largest = max(abs(float(flat.max())), abs(float(flat.min())))  # NaN passes through both
    if not largest * factor <= LARGEST_SUM / sites:
        # The error goes to the server, which must not learn a value of one site.
        log.warning("%r has the value %.4g", name, largest)
        limit = LARGEST_SUM / sites / factor
        raise FeddrmError(
            f"{name!r} has a value (see its log) that is not finite, or above {limit:.4g}, the most that a sum of "
            f"{sites} sites holds in fixed point: nothing is sent; a lower lr, or scaled data, may help"
        )


def _write(words: np.ndarray, flat: np.ndarray, dtype: torch.dtype, weight: float) -> None:
    if not dtype.is_floating_point:
        words[:] = flat
    elif dtype == torch.float64:
        coarse, fine = np.split(words, 2)
        values = flat * weight
        coarse[:] = np.rint(values * COARSE)
        fine[:] = np.rint((values - coarse / COARSE) * FINE)  # the difference is exact
    else:
        for block in _blocks(len(flat)):
            words[block] = np.rint(np.multiply(flat[block], weight * ONE_WORD, dtype=np.float64))


def _blocks(size: int) -> Iterator[slice]:
    """Parts of an array whose intermediate results stay in the processor's cache."""
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))
