"""The score test of two populations under a density ratio model, from moments of its basis functions alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RANK_TOLERANCE = 1e-9  # of the largest eigenvalue of the correlations: directions below it do not vary
ROUNDING = 1e-12  # of its mean: a column that deviates less is constant


@dataclass(frozen=True, eq=False)
class SampleMoments:
    """Number, mean and covariance (divided by the number) of the rows of a sample."""

    count: int
    mean: Floats
    covariance: Floats

    @classmethod
    def of(cls, rows: Floats) -> SampleMoments:
        mean = rows.mean(0)
        return cls(len(rows), mean, (rows - mean).T @ (rows - mean) / len(rows))


class ScoreTest(NamedTuple):
    """The statistic is chi-squared with ``degrees`` of freedom where both populations are equal."""

    statistic: float
    degrees: int
    p_value: float


def score_test(reference: SampleMoments, recent: SampleMoments) -> ScoreTest:
    """Whether two samples are of one population, against tilts that are linear in the columns.

    Under equality the score of the dual, a logistic regression of the population on the columns, is the difference of
    the means. Its information is their covariance in both samples together.
    """
    n0, n1 = reference.count, recent.count
    difference = recent.mean - reference.mean
    share = n1 / (n0 + n1)
    within = (1 - share) * reference.covariance + share * recent.covariance
    pooled = within + share * (1 - share) * np.outer(difference, difference)
    # A constant column has a variance and a difference of rounding errors.
    size = np.maximum(np.abs(reference.mean), np.abs(recent.mean))
    varies = np.diag(pooled) > (ROUNDING * size) ** 2
    if not varies.any():
        return ScoreTest(0.0, 0, 1.0)
    difference, pooled = difference[varies], pooled[np.ix_(varies, varies)]
    scale = np.sqrt(np.diag(pooled))
    values, vectors = np.linalg.eigh(pooled / np.outer(scale, scale))
    used = values > RANK_TOLERANCE * values[-1]
    whitened = (difference / scale) @ vectors[:, used] / np.sqrt(values[used])
    statistic = float(n0 * share * whitened @ whitened)
    degrees = int(used.sum())
    # SciPy imports its submodules on first use: a router waits for this one only when it tests for drift.
    return ScoreTest(statistic, degrees, float(scipy.special.chdtrc(degrees, statistic)))
