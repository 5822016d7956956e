"""Moments add up whatever the division, travel as bytes, and know constant and equal features."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddrm.errors import FeddrmError
from feddrm.moments import Moments

CLASSES = 3
FIELDS = ("counts", "client_sums", "class_sums", "scatter")


def samples(n: int, d: int, seed: int = 0, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = offset + torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x, torch.arange(n) % CLASSES


def divided(x: torch.Tensor, y: torch.Tensor, owners: np.ndarray, clients: int) -> list[Moments]:
    return [Moments.of(x[owners == i], y[owners == i], i, clients, CLASSES) for i in range(clients)]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60), d=st.integers(1, 6), clients=st.integers(1, 5), seed=st.integers(0, 999),
    offset=st.sampled_from([0.0, 1e4]),
)  # fmt: skip
def test_sums_do_not_depend_on_the_division(n, d, clients, seed, offset):
    x, y = samples(n, d, seed, offset)
    owners = np.random.default_rng(seed).integers(0, clients, n)
    total = reduce(add, divided(x, y, owners, clients))
    whole = Moments.of(x, y, 0, 1, CLASSES)
    centred = x - x.mean(0)
    torch.testing.assert_close(total.scatter, centred.T @ centred, rtol=1e-10, atol=1e-9)
    for (counts, sums), (all_counts, all_sums) in [(total.by("class"), whole.by("class"))]:
        assert torch.equal(counts, all_counts)
        torch.testing.assert_close(sums, all_sums, rtol=1e-12, atol=1e-9)
    assert total.by("client")[0].tolist() == np.bincount(owners, minlength=clients).tolist()


def test_features_far_from_zero_keep_their_digits():
    x, y = samples(500, 4)
    near, far = Moments.of(x, y, 0, 1, CLASSES), Moments.of(x + 1e6, y, 0, 1, CLASSES)
    torch.testing.assert_close(far.scatter, near.scatter, rtol=1e-8, atol=1e-6)


def test_more_rows_than_a_block(monkeypatch):
    x, y = samples(50, 3)
    whole = Moments.of(x, y, 0, 1, CLASSES)
    monkeypatch.setattr("feddrm.moments.moments.BLOCK", 7)
    parts = Moments.of(x, y, 0, 1, CLASSES)
    torch.testing.assert_close(parts.scatter, whole.scatter)
    torch.testing.assert_close(parts.class_sums, whole.class_sums)


def test_nothing_adds_nothing():
    x, y = samples(9, 3)
    some = Moments.of(x, y, 0, 2, CLASSES)
    both = some + Moments.of(x[:0], y[:0], 1, 2, CLASSES)
    assert torch.equal(both.scatter, some.scatter)
    assert torch.equal(both.mean, some.mean)


def test_clients_joined_are_clients_added():
    x, y = samples(60, 3)
    owners, part = np.arange(60) % 4, np.arange(60) % 5
    alone = [
        [Moments.of(x[rows], y[rows], 0, 1, CLASSES) for rows in ((owners == i) & (part == p) for p in range(2))]
        for i in range(4)
    ]
    for p, joined in enumerate(Moments.joined(iter(alone))):
        expected = reduce(add, divided(x[part == p], y[part == p], owners[part == p], 4))
        for name in FIELDS:
            torch.testing.assert_close(getattr(joined, name), getattr(expected, name), msg=name)


def test_moments_of_other_features_do_not_add_up():
    few, many = (Moments.of(*samples(9, d), 0, 1, CLASSES) for d in (2, 3))
    with pytest.raises(FeddrmError, match=r"\(1, 3, 2\) and \(1, 3, 3\).*use the same features"):
        few + many


def test_columns_and_standardised_are_those_of_the_samples():
    x, y = samples(40, 5, offset=3.0)
    moments = Moments.of(x, y, 0, 1, CLASSES)
    index = torch.tensor([3, 1])
    part, direct = moments.columns(index), Moments.of(x[:, index], y, 0, 1, CLASSES)
    torch.testing.assert_close(part.scatter, direct.scatter)
    torch.testing.assert_close(part.class_sums, direct.class_sums)
    scaled = moments.standardised(moments.mean, moments.scale)
    direct = Moments.of((x - x.mean(0)) / x.std(0, correction=0), y, 0, 1, CLASSES)
    torch.testing.assert_close(scaled.scatter, direct.scatter)
    torch.testing.assert_close(scaled.class_sums, direct.class_sums, atol=1e-9, rtol=1e-9)


def test_bytes_return_the_same_moments():
    moments = Moments.of(*samples(30, 4, offset=5.0), 1, 2, CLASSES)
    again = Moments.from_bytes(moments.to_bytes())
    for name in FIELDS:
        assert torch.equal(getattr(again, name), getattr(moments, name))


def test_a_message_has_no_room_for_other_clients():
    x, y = samples(30, 4)
    alone, among = (Moments.of(x, y, 0, clients, CLASSES).to_bytes() for clients in (1, 500))
    assert len(among) <= len(alone) + 8


def test_half_costs_a_quarter_of_the_bytes_and_three_digits_of_the_correlations():
    moments = Moments.of(*samples(300, 200, offset=5.0), 0, 1, CLASSES)
    assert len(moments.to_bytes(half=True)) < 0.3 * len(moments.to_bytes())
    again = Moments.from_bytes(moments.to_bytes(half=True))
    assert torch.equal(again.class_sums, moments.class_sums)
    deviation = moments.scatter.diagonal().sqrt()
    error = (again.scatter - moments.scatter).abs() / deviation[:, None] / deviation
    assert 0 < float(error.max()) <= 2**-11


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"scatter": torch.zeros(2, dtype=torch.float64)}, "no moments"),
        ({"class_sums": torch.full((CLASSES, 3), torch.nan, dtype=torch.float64)}, "not finite"),
        ({"counts": torch.zeros(2, dtype=torch.float64)}, "no moments"),
        ({"counts": -torch.ones(CLASSES, dtype=torch.float64)}, "negative count"),
        ({"cells": torch.tensor([[0, 0], [0, 1], [0, 9]])}, "no moments"),
        ({"scatter": -torch.ones(6, dtype=torch.float64)}, "negative"),
    ],
)
def test_what_are_no_moments_is_refused(change, problem):
    tensors = Moments.of(*samples(9, 3), 0, 1, CLASSES).tensors()
    with pytest.raises(FeddrmError, match=f"{problem}.*send them again"):
        Moments.load(tensors | change)


def test_bytes_that_are_no_safetensors_are_refused():
    with pytest.raises(FeddrmError, match=r"no moments.*send them again"):
        Moments.from_bytes(b"zip")
    with pytest.raises(FeddrmError, match="no moments"):
        Moments.load({"counts": torch.zeros(1, 2)})


def test_constant_and_equal_features_are_known():
    x, y = samples(40, 3)
    x = torch.cat([x, x[:, 1:2], torch.full((40, 1), 0.1), 7 - 2 * x[:, :1], x[:, 1:2]], dim=1)
    moments = Moments.of(x, y, 0, 1, CLASSES)
    assert moments.constant.tolist() == [False] * 4 + [True] + [False] * 2
    assert float(moments.scale[4]) == 1
    assert moments.duplicates() == [(1, 3), (0, 5), (1, 6)]
