"""Differences of means between populations: by the model, and by Welch's intervals, of two samples alone.

Where the basis has the column itself, the means of the model are those of the samples, and both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.inference.estimates import Estimate, influence_of_mean, variance_parts
from feddrm.typed_settings import typed_arguments


@typed_arguments
def mean_differences(fit: DensityRatioFit) -> Estimate:
    """The mean of every population less that of every earlier one, in the order of :func:`pairs`, by column."""
    influences = [influence_of_mean(fit, i, fit.values) for i in range(len(fit.names))]
    means = fit.weights.T @ fit.values
    return differences(means, fit.counts, lambda i, j: variance_parts(fit, influences[j] - influences[i]))


def welch_differences(samples: Sequence[Floats]) -> Estimate:
    """The same by the rows of the two samples alone (Welch, 1947)."""
    sizes = np.array([len(sample) for sample in samples])
    own = np.array([sample.var(0, ddof=1) / len(sample) for sample in samples])

    def parts(i: int, j: int) -> Floats:
        return np.where(np.isin(np.arange(len(own)), (i, j))[:, None], own, 0.0)

    return differences(np.array([sample.mean(0) for sample in samples]), sizes, parts)


def differences(means: Floats, sizes: NDArray[np.intp], parts: Callable[[int, int], Floats]) -> Estimate:
    """Differences of ``means`` with t intervals, whose degrees of freedom are Satterthwaite's.

    ``parts(i, j)`` are what every sample (rows) adds to the variance of population j less i, by column.
    """
    each = [parts(i, j) for i, j in pairs(len(means))]
    variance = np.array([part.sum(0) for part in each])
    spread = np.array([(part**2 / (sizes - 1)[:, None]).sum(0) for part in each])
    degrees = np.divide(variance**2, spread, out=np.ones_like(variance), where=spread > 0)  # 1 of constant columns
    value = np.array([means[j] - means[i] for i, j in pairs(len(means))])
    return Estimate(value, np.sqrt(variance), degrees)


def pairs(size: int) -> list[tuple[int, int]]:
    """Every two populations, the earlier one first."""
    return list(combinations(range(size), 2))
