"""Samples with an excess of zeros: the share of zeros, and a density ratio model of the positive observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import chi2

from feddrm.drm.basis import Floats, as_rows
from feddrm.drm.density_ratio import DensityRatioFit, DensityRatioModel, Samples, named_samples
from feddrm.drm.inference.estimates import (
    Estimate,
    before_jumps,
    check_levels,
    distribution,
    dominance,
    influence_of_mean,
    mean,
    normal_quantile,
    single_column,
    variance_parts,
    weighted_quantiles,
)
from feddrm.drm.inference.hypothesis_tests import HypothesisTest, Testing, homogeneity
from feddrm.drm.inference.mean_differences import differences
from feddrm.errors import FeddrmError, SettingError


@dataclass(frozen=True, eq=False)
class TwoPartFit:
    """A binomial share of zeros per population, and a fit to the positive observations."""

    positive: DensityRatioFit
    zeros: NDArray[np.intp]
    sizes: NDArray[np.intp]

    @classmethod
    def of(cls, model: DensityRatioModel, samples: Samples, columns: Sequence[str] | None = None) -> TwoPartFit:
        """Separate zeros from positive observations and fit the latter."""
        names, parts = named_samples(samples)
        numbers = {}
        for name, part in zip(names, parts, strict=True):
            x = as_rows(part)
            if x.shape[1] != 1:
                raise FeddrmError(f"samples with an excess of zeros need one column, not {x.shape[1]}")
            if (low := x.min()) < 0:
                raise FeddrmError(f"population '{name}' has the value {low:g}: with zeros apart, give none below 0")
            numbers[name] = x[:, 0]
        zeros = np.array([(x == 0).sum() for x in numbers.values()])
        if not zeros.any():
            raise FeddrmError("no sample has a zero: fit without zeros apart")
        for name, x in numbers.items():
            if (x > 0).sum() < 2:
                raise FeddrmError(
                    f"population '{name}' has {(x > 0).sum()} positive observations: give at least 2, or leave it out"
                )
        fit = model.fit({name: x[x > 0] for name, x in numbers.items()}, columns)
        return cls(fit, zeros, np.array([len(x) for x in numbers.values()]))

    @property
    def shares(self) -> Floats:
        """The share of zeros in every sample."""
        return np.asarray(self.zeros / self.sizes)

    def share_interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Wilson's interval of the share of zeros."""
        z = normal_quantile(level)
        n, p = self.sizes, self.shares
        centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
        reach = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        # Rounding would leave limits of 1e-18 where no or every observation is zero.
        return np.where(self.zeros == 0, 0.0, centre - reach), np.where(self.zeros == n, 1.0, centre + reach)

    def homogeneity(self, how: Testing | None = None) -> HypothesisTest:
        """Test whether all populations are equal: the sum of both parts' likelihood ratios."""
        how = (how or Testing()).resolved(self.positive)
        if how.correction == "bootstrap" or how.statistic != "likelihood ratio":
            raise SettingError(
                "with zeros apart, homogeneity is a likelihood ratio: correct it by 'bartlett' or 'none'"
            )
        part = homogeneity(self.positive, how)
        pooled = self.zeros.sum() / self.sizes.sum()
        gain = xlogy(self.zeros, self.shares / pooled) + xlogy(
            self.sizes - self.zeros, (1 - self.shares) / (1 - pooled)
        )
        statistic = 2 * float(gain.sum()) + part.statistic / part.factor
        degrees = part.degrees + len(self.sizes) - 1
        name = f"{part.hypothesis}, zeros included"
        return HypothesisTest(
            name, statistic, degrees, float(chi2.sf(statistic, degrees)), part.correction, part.factor
        )

    def mean(self) -> Estimate:
        """The mean of every population, zeros included."""
        part, share = mean(self.positive), self.shares[:, None]
        variance = ((1 - share) * part.error) ** 2 + part.value**2 * share * (1 - share) / self.sizes[:, None]
        return Estimate((1 - share) * part.value, np.sqrt(variance), degrees=(self.sizes - 1).astype(np.float64))

    def mean_differences(self) -> Estimate:
        """The mean of every population less that of every earlier one, zeros included."""
        fit, mean, own = self.positive, self.mean().value, 1 - self.shares
        influences = [part * influence_of_mean(fit, i, fit.values) for i, part in enumerate(own)]
        of_share = (mean / own[:, None]) ** 2 * (self.shares * own / self.sizes)[:, None]

        def parts(i: int, j: int) -> Floats:
            both = np.isin(np.arange(len(own)), (i, j))[:, None]
            return variance_parts(fit, influences[j] - influences[i]) + np.where(both, of_share, 0.0)

        return differences(mean, self.sizes, parts)

    def whole_samples(self) -> list[Floats]:
        """The samples with their zeros, which come last."""
        samples = map(as_rows, self.positive.samples)
        return [np.vstack([x, np.zeros((zeros, 1))]) for x, zeros in zip(samples, self.zeros, strict=True)]

    def dominance(self) -> Estimate:
        """``P(X_i < X_j) + P(X_i = X_j) / 2``, i in rows: a zero ties with zeros, and is below every positive value."""
        part, size = dominance(self.positive), len(self.sizes)
        row, column = self.shares[:, None], self.shares[None, :]
        value = row * (1 - column / 2) + (1 - row) * (1 - column) * part.value
        # Both shares and the positive part are independent: the squared slopes times their variances add up.
        of_share = (self.shares * (1 - self.shares) / self.sizes)[:, None]
        variance = (1 - column / 2 - (1 - column) * part.value) ** 2 * of_share
        variance += (row / 2 + (1 - row) * part.value) ** 2 * of_share.T
        variance += ((1 - row) * (1 - column) * part.error) ** 2
        same = np.eye(size, dtype=bool)
        return Estimate(np.where(same, 0.5, value), np.where(same, 0.0, np.sqrt(variance)), probability=True)

    def quantile(self, levels: ArrayLike) -> Floats:
        """Quantiles of every population, zeros included."""
        return self._inverse(np.tile(check_levels(levels), (len(self.sizes), 1)))

    def quantile_interval(self, levels: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Limits of quantiles by inverting those of the distribution function, whose error has both parts."""
        wanted, centre = check_levels(levels), self.quantile(levels)
        reach, above = normal_quantile(confidence), self._error(centre)
        below = np.maximum(above, self._error(before_jumps(single_column(self.positive), centre)))
        return self._inverse(wanted - reach * below), self._inverse(wanted + reach * above)

    def _error(self, points: Floats) -> Floats:
        """The standard error of every population's distribution function at its row of points."""
        error = np.empty_like(points)
        for i, row in enumerate(points):
            below = distribution(self.positive, row)
            of_share = (1 - below.value[i]) ** 2 * self.shares[i] * (1 - self.shares[i]) / self.sizes[i]
            error[i] = np.sqrt(of_share + ((1 - self.shares[i]) * below.error[i]) ** 2)
        return error

    def _inverse(self, levels: Floats) -> Floats:
        above = (levels - self.shares[:, None]) / (1 - self.shares[:, None])
        values = weighted_quantiles(single_column(self.positive), self.positive.weights, np.clip(above, 0, 1))
        return np.where(above <= 0, 0.0, values)
