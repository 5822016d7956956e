"""Paired differences against a computation by SciPy, and where nothing is claimed."""

from __future__ import annotations

import pytest
from scipy import stats

from feddrm.report.paired_difference import PairedDifference


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    one, other = [0.71, 0.74, 0.78, 0.69], [0.70, 0.71, 0.77, 0.66]
    difference = PairedDifference.of([a - b for a, b in zip(one, other, strict=True)])
    expected = stats.ttest_rel(one, other)
    interval = expected.confidence_interval(0.95)
    assert difference.interval == pytest.approx((interval.low, interval.high))
    assert difference.mean / difference.error == pytest.approx(expected.statistic)  # type: ignore[operator]
    assert (difference.seeds, difference.positive) == (4, True)
    assert str(difference) == f"+2.00 [+{100 * interval.low:.2f}, +{100 * interval.high:.2f}]"


def test_two_seeds_make_a_wide_interval() -> None:
    difference = PairedDifference.of([0.01, 0.03])
    assert difference.interval == pytest.approx((0.02 - 12.7062 * 0.01, 0.02 + 12.7062 * 0.01), abs=1e-6)
    assert not difference.positive


@pytest.mark.parametrize("differences", [[0.2], [0.01, 0.01], [0.1 + 0.2, 0.3, 0.3]])
def test_one_seed_or_no_spread_allows_no_claim(differences: list[float]) -> None:
    """On a small test set two differences are often equal by chance."""
    difference = PairedDifference.of(differences)
    assert (difference.error, difference.interval, difference.positive) == (None, None, False)
    assert str(difference) == f"{100 * differences[0]:+.2f}"


def test_an_interval_below_zero_is_no_advantage() -> None:
    assert not PairedDifference.of([-0.2, -0.21, -0.19]).positive
    assert not PairedDifference(3, 0.5, 0.1, (0.0, 1.0)).positive, "nor is one that begins there"
