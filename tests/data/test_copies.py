"""Test samples that are copies of training samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from feddrm.data import Federation, Split
from feddrm.data.copies import copies_warning

RNG = np.random.default_rng(0)


def federation(*shape: int, copied: int = 0) -> Federation:
    """Two clients of 70 training and 30 test samples; lima's last test samples may be some of oslo's training."""
    pairs = {}
    for name in ("oslo", "lima"):
        x = RNG.integers(0, 256, (100, *shape)) if len(shape) > 1 else RNG.normal(size=(100, *shape))
        pairs[name] = x, np.arange(100) % 2
    made = Federation.from_arrays(pairs)
    oslo, lima = made.clients
    kept = 30 - copied
    x, y = (
        torch.cat([lima.test.x[:kept], oslo.train.x[:copied]]),
        torch.cat([lima.test.y[:kept], oslo.train.y[:copied]]),
    )
    return replace(made, clients=(oslo, replace(lima, test=Split(x, y))))


@pytest.mark.parametrize("shape", [(5,), (6, 6)])
def test_copies_are_counted_over_all_clients_and_one_is_named(shape: tuple[int, ...]) -> None:
    assert copies_warning("own", federation(*shape).clients) is None
    warning = copies_warning("own", federation(*shape, copied=4).clients)
    assert warning is not None
    assert warning.startswith("own: 4 of 60 test samples are equal to training samples, such as test sample 26 of ")
    assert "client 'lima'" in warning
    assert len([text for text in federation(*shape, copied=4).warnings() if "4 of 60 test samples" in text]) == 1


def test_equal_samples_of_other_labels_are_no_copies() -> None:
    oslo, lima = federation(5, copied=4).clients
    assert copies_warning("own", (oslo, replace(lima, test=replace(lima.test, y=1 - lima.test.y)))) is None


def test_less_than_one_in_a_hundred_is_no_warning() -> None:
    fed = federation(5, copied=1)
    lima = fed.clients[1]
    many = torch.cat([lima.test.x, torch.randn(100, 5, generator=torch.Generator().manual_seed(0))])
    more = replace(lima, test=replace(lima.test, x=many, y=torch.zeros(len(many), dtype=torch.int64)))
    assert copies_warning("own", fed.clients) is not None
    assert copies_warning("own", (fed.clients[0], more)) is None


def test_rows_of_codes_are_equal_by_chance_and_pictures_are_not() -> None:
    codes = {name: (RNG.integers(0, 2, (100, 3)).astype(float), np.arange(100) % 2) for name in ("oslo", "lima")}
    assert copies_warning("own", Federation.from_arrays(codes).clients) is None
    twice = {
        name: (RNG.integers(0, 256, (50, 6, 6)).repeat(2, 0), np.arange(100) // 2 % 2) for name in ("oslo", "lima")
    }
    warning = copies_warning("own", Federation.from_arrays(twice).clients)
    assert warning is not None
    assert warning.startswith("own: ")
