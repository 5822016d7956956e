"""Nested lists of numbers, as JSON has them, converted to NumPy arrays and checked strictly."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.errors import FeddrmError

NUMBER_TYPES = frozenset({int, float, bool})  # an array of bool alone is refused later


def number_array(data: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Nested lists of numbers as an array of this type; an error for anything else. ``name`` is for the error."""
    integers = dtype.kind == "u"
    numbers_only = f"{name}: give {'whole numbers' if integers else 'numbers'} only"
    if not _all_numbers(data):
        raise FeddrmError(numbers_only)
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise FeddrmError(f"{name}: rows of different length, or no numbers: give nested lists of numbers") from error
    except MemoryError as error:
        raise FeddrmError(f"{name}: more numbers than there is memory for: send less at a time") from error
    if array.size and (array.dtype.kind not in "iuf" or (integers and array.dtype.kind == "f")):
        raise FeddrmError(numbers_only)
    if integers and array.size and (array.min() < 0 or array.max() > 255):
        raise FeddrmError(f"{name}: uint8 goes from 0 to 255")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _all_numbers(data: Any) -> bool:
    """Whether nested lists hold numbers only, whatever their depth; every value is looked at once.

    This comes before NumPy: an array of strings is as wide as its longest string, so that a short text could fill
    the memory.
    """
    level = [data]
    while level:
        others = set(map(type, level)) - NUMBER_TYPES
        if not others:
            return True
        if others != {list}:
            return False
        level = list(chain.from_iterable(value for value in level if type(value) is list))
    return True
