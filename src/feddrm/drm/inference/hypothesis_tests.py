"""Tests of linear hypotheses on the tilts: dual empirical likelihood ratio and Wald, corrected for small samples.

The dual likelihood ratio of a hypothesis on the slopes has a chi-square limit (Cai, Chen and Zidek, 2017). In small
samples the statistic is larger than its limit. The Bartlett correction divides it by the ratio of its mean in
bootstrap samples, drawn where the hypothesis holds, to its degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import null_space
from scipy.stats import chi2

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.inference.resampling import (
    Refits,
    as_refits,
    check_replicates,
    draws,
    permutations,
    refit,
    require_enough,
    require_no_ridge,
    start_of,
)
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import check_choice
from feddrm.typed_settings import typed_arguments

Rows = NDArray[np.floating[Any]]
STATISTICS = ("likelihood ratio", "wald")
CORRECTIONS = ("auto", "none", "bartlett", "bootstrap")
SMALL = 30  # observations of the smallest sample per basis function: below it, ``auto`` corrects


@dataclass(frozen=True)
class Testing:
    """How to test: which statistic, and which correction for small samples.

    ``bartlett`` scales the statistic by its bootstrap mean; ``bootstrap`` compares it with the bootstrap samples
    themselves. ``auto`` corrects below 30 observations per basis function in the smallest sample: a likelihood ratio
    by ``bartlett``; a Wald statistic by ``bootstrap``, because its distribution differs from chi-square in more than
    the mean.
    """

    __test__ = False  # pytest takes every class of this name for a test

    statistic: str = "likelihood ratio"
    correction: str = "auto"
    replicates: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("statistic", self.statistic, STATISTICS)
        check_choice("correction", self.correction, CORRECTIONS)
        check_replicates(self.replicates)

    def resolved(self, fit: DensityRatioFit) -> Testing:
        """With the correction that ``auto`` means for this fit."""
        if self.correction != "auto":
            return self
        small = fit.counts.min() < SMALL * fit.features.shape[1]
        usual = "bartlett" if self.statistic == STATISTICS[0] else "bootstrap"
        return replace(self, correction=usual if small else "none")


@dataclass(frozen=True)
class HypothesisTest:
    """The result of a test. Without a correction the statistic is compared with a chi-square distribution."""

    hypothesis: str
    statistic: float
    degrees: int
    p_value: float
    correction: str = "none"
    factor: float = 1.0  # the mean of the statistic under the hypothesis, divided by its degrees of freedom


@typed_arguments
def homogeneity(fit: DensityRatioFit, how: Testing | None = None) -> HypothesisTest:
    """Test whether all populations are equal: all tilts are zero."""
    return equality(fit, fit.names, how)


@typed_arguments
def equality(fit: DensityRatioFit, populations: Sequence[str | int], how: Testing | None = None) -> HypothesisTest:
    """Test whether these populations, two or more, are equal."""
    places = sorted({fit.index(population) for population in populations})
    if len(places) < 2:
        raise SettingError(f"equality of {list(populations)}: give two populations or more")
    d = fit.features.shape[1]
    contrast = np.zeros((len(places) - 1, len(fit.names)))
    for row, place in enumerate(places[1:]):
        contrast[row, place], contrast[row, places[0]] = 1.0, -1.0
    names = " = ".join(fit.names[place] for place in places)
    return _test(fit, np.kron(contrast[:, 1:], np.eye(d)), None, how, names)


@typed_arguments
def pairwise(fit: DensityRatioFit, how: Testing | None = None) -> list[tuple[HypothesisTest, float]]:
    """Test every two populations. The second number is Holm's p-value, adjusted for the number of pairs."""
    tests = [equality(fit, pair, how) for pair in combinations(range(len(fit.names)), 2)]
    order = np.argsort([test.p_value for test in tests], kind="stable")
    scaled = [tests[place].p_value * (len(tests) - rank) for rank, place in enumerate(order)]
    adjusted = np.empty(len(tests))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return list(zip(tests, adjusted.tolist(), strict=True))


@typed_arguments
def without_terms(fit: DensityRatioFit, terms: Sequence[str], how: Testing | None = None) -> HypothesisTest:
    """Test whether the populations differ without these basis functions: their slopes are zero in every tilt."""
    if unknown := [term for term in terms if term not in fit.terms]:
        raise SettingError(f"no term '{unknown[0]}' (there are: {', '.join(fit.terms)})")
    if not terms:
        raise SettingError(f"no terms to test: give some of {', '.join(fit.terms)}")
    chosen = np.eye(len(fit.terms))[[fit.terms.index(term) for term in dict.fromkeys(terms)]]
    return _test(fit, np.kron(np.eye(len(fit.names) - 1), chosen), None, how, f"no {', '.join(terms)}")


def linear_hypothesis(
    fit: DensityRatioFit, matrix: ArrayLike, value: ArrayLike | None = None, how: Testing | None = None
) -> HypothesisTest:
    """Test ``matrix @ xi[1:].ravel() = value`` (zero by default): any linear hypothesis on the slopes."""
    rows = np.atleast_2d(np.asarray(matrix, dtype=np.float64))
    size = fit.xi[1:].size
    if rows.shape[1] != size or np.linalg.matrix_rank(rows) < len(rows):
        raise SettingError(
            f"a hypothesis of shape {rows.shape}: give independent rows of {size} numbers, the {len(fit.terms)} slopes "
            f"({', '.join(fit.terms)}) of every population but the first"
        )
    goal = None if value is None else np.asarray(value, dtype=np.float64).reshape(len(rows))
    return _test(fit, rows, goal, how, f"{len(rows)} linear constraints")


def _test(fit: DensityRatioFit, matrix: Rows, value: Floats | None, how: Testing | None, name: str) -> HypothesisTest:
    require_no_ridge(fit, f"the test of '{name}'")
    how = (how or Testing()).resolved(fit)
    constraint = _Constraint.of(fit, matrix, value)
    degrees = len(matrix)
    observed = as_refits(fit)
    null = constraint.refit(fit, observed)
    statistic = float(constraint.statistics(how.statistic, observed, null)[0])
    if how.correction == "none":
        return HypothesisTest(name, statistic, degrees, float(chi2.sf(statistic, degrees)))
    # If the populations are equal, their observations may be exchanged: that is exact.
    exchangeable = degrees == fit.xi[1:].size and not constraint.value.any()
    samples = (
        permutations(fit, how.replicates, how.seed)
        if exchangeable
        else draws(fit, null.weights(fit.design)[:, :, 0].T, how.replicates, how.seed)
    )
    # Where the hypothesis holds, its fit is near the replicates; the fit without it may be far from them.
    values = constraint.replicated(fit, how.statistic, samples, null.coefficients[0])
    replicated = np.concatenate([np.empty(0), *values])
    require_enough(len(replicated), how.replicates)
    factor = float(replicated.mean()) / degrees
    if how.correction == "bootstrap":
        p_value = (1 + int((replicated >= statistic - 1e-9).sum())) / (1 + len(replicated))
    else:
        p_value = float(chi2.sf(statistic / factor, degrees))
    return HypothesisTest(name, statistic, degrees, p_value, how.correction, factor)


@dataclass(frozen=True, eq=False)
class _Constraint:
    """``matrix @ coefficients = value`` in whitened coordinates, and the directions that keep to it."""

    matrix: Floats
    value: Floats
    free: Floats

    @classmethod
    def of(cls, fit: DensityRatioFit, matrix: Rows, value: Floats | None) -> _Constraint:
        slopes = np.hstack([np.zeros((len(fit.terms), 1)), fit.whitening.directions])
        whole = matrix @ np.kron(np.eye(len(fit.names) - 1), slopes)
        # As orthonormal rows: those of x and x^2 are nearly parallel where x is far from 0.
        scale = np.linalg.norm(whole, axis=1)
        rows, mix = np.linalg.qr((whole / scale[:, None]).T)
        goal = np.zeros(len(matrix)) if value is None else np.linalg.solve(mix.T, value / scale)
        return cls(np.asarray(rows.T), goal, null_space(rows.T))

    def refit(self, fit: DensityRatioFit, refits: Refits) -> Refits:
        """The fit to the data under the hypothesis, from the projection of the fit, or else of zero."""
        inverse = np.linalg.inv(refits.information[0])
        gain = inverse @ self.matrix.T @ np.linalg.inv(self.matrix @ inverse @ self.matrix.T)
        for start in (start_of(fit), np.zeros(self.matrix.shape[1])):
            null = refit(fit.design, refits.counts, start - gain @ (self.matrix @ start - self.value), self.free)
            if len(null.coefficients):
                return null
        raise FeddrmError("the populations have no fit under the hypothesis: they are too far from it to be tested")

    def replicated(
        self, fit: DensityRatioFit, statistic: str, samples: Iterator[Floats], start: Floats
    ) -> Iterator[Floats]:
        """The statistic of every replicate that has a fit. The fits begin at ``start``, where the hypothesis holds."""
        for counts in samples:
            whole = refit(fit.design, counts, start)
            null = refit(fit.design, whole.counts, start, self.free) if statistic == STATISTICS[0] else whole
            if len(null.log_likelihood) == len(whole.log_likelihood):
                yield self.statistics(statistic, whole, null)

    def statistics(self, statistic: str, whole: Refits, null: Refits) -> Floats:
        """Twice the gain of the dual likelihood; or the squared distance in units of its covariance."""
        if statistic == STATISTICS[0]:
            return np.maximum(0.0, 2 * (whole.log_likelihood - null.log_likelihood))
        distance = whole.coefficients @ self.matrix.T - self.value
        covariance = self.matrix @ np.linalg.solve(whole.information, self.matrix.T[None])
        return np.asarray((distance[:, None, :] @ np.linalg.solve(covariance, distance[:, :, None]))[:, 0, 0])
