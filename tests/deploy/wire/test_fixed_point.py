"""Fixed-point sums: exact modulo 2^64, within the stated rounding, refused where they could overflow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrm.deploy.wire.fixed_point import count_words, decode, encode
from feddrm.methods import Tensors
from refusal import refused


def drawn(seed: int, shapes: list[tuple[int, ...]]) -> Tensors:
    """Tensors of all three kinds with values of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    out: Tensors = {}
    for number, shape in enumerate(shapes):
        size = 10.0 ** torch.randint(-6, 4, shape, generator=generator)
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * size
        out |= {f"{number}/single": values.float(), f"{number}/double": values, f"{number}/count": values.long()}
    return out


SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 50), SHAPES, st.integers(0, 2**32), st.floats(0.001, 1.0))
def test_sums_are_within_the_stated_rounding(
    sites: int, shapes: list[tuple[int, ...]], seed: int, weight: float
) -> None:
    uploads = [drawn(seed + i, shapes) for i in range(sites)]
    total = np.zeros(count_words(uploads[0]), np.uint64)
    for upload in uploads:
        total += encode(upload, sites, weight)
    for name, value in decode(total, uploads[0]).items():
        assert value.shape == uploads[0][name].shape
        each = [upload[name].flatten().tolist() for upload in uploads]
        for got, *values in zip(value.flatten().tolist(), *each, strict=True):
            exact = sum(Fraction(v) for v in values)
            if name.endswith("count"):
                assert got == exact
                continue
            exact *= Fraction(weight)
            # float64 itself rounds: the product with the weight at each site, and the sum at the end.
            rounding = Fraction(2) ** -52 * (abs(exact) + sum(abs(Fraction(v)) for v in values))
            step = Fraction(2) ** -41 if name.endswith("single") else Fraction(2) ** -65
            rounding += abs(exact) * Fraction(2) ** -24 if name.endswith("single") else 0  # the sum as float32
            assert abs(Fraction(got) - exact) <= sites * step + rounding


def test_values_that_have_a_place_come_back_as_they_were() -> None:
    tensors = {
        "double": torch.tensor([1 / 3, -1e14, 2.0**-64, 0.0], dtype=torch.float64),
        "single": torch.tensor([1.5, -(2.0**-40), 1e6]),
        "count": torch.tensor([[0, -5, 2**59]]),
        "empty": torch.zeros(0, 3),
    }
    again = decode(encode(tensors, 3), tensors)
    assert again["double"].tolist()[1:] == tensors["double"].tolist()[1:]
    assert float(again["double"][0]) == 1 / 3
    assert torch.equal(again["single"], tensors["single"])
    assert torch.equal(again["count"], tensors["count"])
    assert again["empty"].shape == (0, 3)


def test_weights_that_add_up_to_one_give_a_mean() -> None:
    """Divided by their sum, floats are a weighted mean; counts are added without weights."""
    uploads = [
        {"one": torch.tensor([v]), "two": torch.tensor([v]).double(), "count": torch.tensor([3])} for v in (2.0, 6.0)
    ]
    total = encode(uploads[0], 2, 0.25) + encode(uploads[1], 2, 0.125)
    mean = decode(total, uploads[0], 0.25 + 0.125)
    assert (mean["one"].item(), mean["two"].item()) == (pytest.approx(10 / 3), pytest.approx(10 / 3, rel=1e-15))
    assert mean["count"].tolist() == [6]


@pytest.mark.parametrize(
    ("value", "limit", "shown"),
    [
        (torch.tensor([1.0, 1.5e6]), "1.398e+06", "1.5e+06"),
        (torch.tensor([-1e15], dtype=torch.float64), "3.753e+14", "1e+15"),
        (torch.tensor([2**61]), "1.537e+18", "2.306e+18"),
        (torch.tensor([float("nan"), 1.0]), "1.398e+06", "nan"),
        (torch.tensor([float("inf")]), "1.398e+06", "inf"),
    ],
)
def test_a_value_that_could_overflow_the_sum_is_refused(
    value: torch.Tensor, limit: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The value is in the site's log alone: the error goes to the server, which may learn sums over sites only."""
    with refused("'trunk'", "3 sites", limit, "nothing is sent") as error:
        encode({"trunk": value}, 3)
    assert shown not in str(error.value)
    assert f"'trunk' has the value {shown}" in caplog.text


def test_the_largest_values_of_all_sites_do_not_overflow() -> None:
    largest = {"trunk": torch.full((2,), 2.0**22 / 4)}
    total = np.zeros(2, np.uint64)
    for _ in range(4):
        total += encode(largest, 4)
    assert decode(total, largest)["trunk"].tolist() == [2.0**22] * 2
