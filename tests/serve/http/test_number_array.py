from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from feddrm.serve.http.number_array import number_array, require_few_lists
from refusal import refused


@pytest.mark.parametrize("nest", [lambda words: words, lambda words: [[[word] for word in words]]])
def test_strings_are_an_error_and_take_little_memory(nest: Callable[[list[str]], list[object]]) -> None:
    """NumPy would make every string as wide as the longest: 64 MB from a text of 8 kB."""
    data = nest(["x" * 4000, *[""] * 4000])
    tracemalloc.start()
    try:
        with refused("numbers only"):
            number_array(data, np.dtype("float32"), "features")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("feddrm.serve.http.number_array.np.asarray", full)
    with refused("memory"):
        number_array([1], np.dtype("float32"), "x")


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_no_numbers_at_all_are_an_empty_array(dtype: str) -> None:
    """NumPy takes empty lists for floats. The shape is checked later, with a text that fits."""
    for data, shape in (([], (0,)), ([[], []], (2, 0))):
        array = number_array(data, np.dtype(dtype), "x")
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))


def test_numbers_out_of_range_never_wrap_around() -> None:
    with refused("0 to 255"):
        number_array([-1], np.dtype("uint8"), "x")
    assert np.isinf(number_array([1e300], np.dtype("float32"), "x")[0])  # refused where finite numbers are checked


def test_lists_are_counted_before_they_are_parsed() -> None:
    colours = [[[0] * 32] * 32] * 3
    require_few_lists(json.dumps([colours] * 1024, separators=(",", ":")).encode(), 1024)
    large = json.dumps([[[[0] * 224] * 224] * 3] * 27, separators=(",", ":")).encode()
    require_few_lists(large, 1)
    few = b"[" + b",".join([b"{}"] * 127) + b"]"
    require_few_lists(few, 1)
    with refused("the body has 129 lists and objects, 128 are read", "give fewer samples"):
        require_few_lists(b"[" + few + b"]", 1)
