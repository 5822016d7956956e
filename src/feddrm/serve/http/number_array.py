"""Nested lists of numbers, as JSON has them, counted before they are parsed, then checked strictly as NumPy arrays."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.errors import FeddrmError
from feddrm.serve.settings import as_given

LISTS_PER_SAMPLE = 128  # a colour picture of 32 x 32 pixels has 100
BYTES_PER_LIST = 64  # of larger pictures, few of which fit a body
NUMBER_TYPES = frozenset({int, float, bool})  # an array of bool alone is refused later


def require_few_lists(text: bytes, max_rows: int) -> None:
    """Refuse JSON of more lists and objects than ``max_rows`` samples can have, before it is parsed.

    Millions of empty ones fit a body, and parsing them would hold up all other requests for seconds.
    """
    most = max(LISTS_PER_SAMPLE * max_rows, len(text) // BYTES_PER_LIST)
    if (count := text.count(b"[") + text.count(b"{")) > most:
        raise FeddrmError(f"the body has {count} lists and objects, {most} are read: give fewer samples in one request")


def number_array(data: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Nested lists of numbers as an array of this type; an error for anything else. ``name`` is for the error."""
    integers = dtype.kind == "u"
    numbers_only = f"give {'whole numbers' if integers else 'numbers'} only"
    if other := _first_other(data):
        raise FeddrmError(f"{name}: {other} is no number: {numbers_only}")
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise FeddrmError(f"{name}: rows of different length, or no numbers: give nested lists of numbers") from error
    except MemoryError as error:
        raise FeddrmError(f"{name}: more numbers than there is memory for: send less at a time") from error
    if array.size and (array.dtype.kind not in "iuf" or (integers and array.dtype.kind == "f")):
        raise FeddrmError(f"{name}: {numbers_only}")
    if integers and array.size and (array.min() < 0 or array.max() > 255):
        wrong = array.min() if array.min() < 0 else array.max()
        raise FeddrmError(f"{name}: {wrong} is no uint8: give 0 to 255")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _first_other(data: Any) -> str:
    """The first value in nested lists that is no number, whatever their depth; empty if there is none.

    This comes before NumPy: an array of strings is as wide as its longest string, so that a short text could fill
    the memory.
    """
    level = [data]
    while level:
        others = set(map(type, level)) - NUMBER_TYPES
        if strange := others - {list}:
            return as_given(next(value for value in level if type(value) in strange))
        level = list(chain.from_iterable(value for value in level if type(value) is list)) if others else []
    return ""
