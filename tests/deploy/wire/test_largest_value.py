"""A site's largest value: alone, as the mean of several by a floor, and as counts that add up over sites."""

from __future__ import annotations

import pytest
import torch

from feddrm.deploy.wire.largest_value import BINS, STEPS, largest_value, read_largest

VALUES = torch.tensor([3.0, 0.5, 7.0, 2.0], dtype=torch.float64)
EACH = torch.arange(4)  # every value is of a subject of its own


def test_without_a_floor_the_answer_is_the_largest_value() -> None:
    assert read_largest(largest_value(VALUES, EACH, 1, pooled=False)) == 7.0
    assert read_largest(largest_value(VALUES[:0], EACH[:0], 1, pooled=False)) == 0.0


def test_a_floor_takes_the_mean_of_as_many_largest_values() -> None:
    assert read_largest(largest_value(VALUES, EACH, 3, pooled=False)) == 4.0
    assert read_largest(largest_value(VALUES, EACH, 9, pooled=False)) == float(VALUES.mean())


def test_of_each_subject_one_value_enters_the_mean() -> None:
    """The two largest values are of one patient: their mean would tell of that patient alone."""
    whose = torch.tensor([8, 5, 8, 5])
    assert read_largest(largest_value(VALUES, whose, 2, pooled=False)) == (7.0 + 2.0) / 2
    assert int(largest_value(VALUES, whose, 3, pooled=True).sum()) == 2


@pytest.mark.parametrize(("per_sum", "largest"), [(1, 7.0), (3, 4.0)])
def test_counts_of_sites_add_up_to_the_upper_edge_of_the_largest(per_sum: int, largest: float) -> None:
    one, other = (largest_value(values, EACH, per_sum, pooled=True) for values in (VALUES, VALUES / 5))
    assert one.shape == other.shape == (BINS,)
    assert int(one.sum()) == int(other.sum()) == per_sum, "no more samples than the site has"
    assert 1 <= read_largest(one + other) / largest < 2 ** (1 / STEPS)


def test_values_beyond_the_bins_count_in_the_outer_ones() -> None:
    for value, edge in ((0.0, 2.0**-32), (1e30, 2.0 ** (32 - 1 / STEPS))):
        answer = largest_value(torch.tensor([value], dtype=torch.float64), EACH[:1], 1, pooled=True)
        assert read_largest(answer) == edge
