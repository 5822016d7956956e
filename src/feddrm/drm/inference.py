"""Estimates from a fit, with standard errors: tilts, means, distributions, quantiles; and a test of homogeneity.

Every estimate is a smooth function of the pooled sample, so one influence value per observation gives its
variance. The influences are centred within each population, because the sizes of the samples are fixed by design.
This sandwich variance also holds if the model is only approximately right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import chi2, norm

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.logistic import information
from feddrm.errors import FeddrmError, SettingError


@dataclass(frozen=True)
class Estimate:
    """A number, or an array of them, with standard errors."""

    value: Floats
    error: Floats

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """A two-sided normal confidence interval."""
        reach = _quantile_of_normal(level) * self.error
        return self.value - reach, self.value + reach


@dataclass(frozen=True)
class Homogeneity:
    """The test that all populations are equal. The statistic is chi-square distributed if they are."""

    statistic: float
    degrees: int
    p_value: float


def coefficient_covariance(fit: DensityRatioFit) -> Floats:
    """Sandwich covariance of (gamma, xi) of every population but the first, in that order.

    It is the same for both kinds of gamma, because they differ by a constant. The bias of a ridge is not included.
    """
    influence = _coefficient_influence(fit)
    back = np.kron(np.eye(len(fit.names) - 1), fit.whitening.back)
    return np.asarray(back @ _within(fit, influence) @ back.T)


def tilts(fit: DensityRatioFit) -> Estimate:
    """One row (gamma dagger, xi) per population; the first is zero and has no error."""
    value = np.column_stack([fit.gamma_dagger, fit.xi])
    error = np.zeros_like(value)
    error[1:] = np.sqrt(np.diag(coefficient_covariance(fit))).reshape(len(fit.names) - 1, -1)
    return Estimate(value, error)


def homogeneity(fit: DensityRatioFit) -> Homogeneity:
    """Test whether all tilts are zero, by the dual empirical likelihood ratio with (m - 1) d degrees of freedom."""
    if fit.model.ridge > 0:
        raise FeddrmError("the test of homogeneity compares unpenalised fits: fit with ridge=0")
    counts = fit.counts
    null = float((counts * np.log(counts / counts.sum())).sum())
    statistic = max(0.0, 2 * (fit.log_likelihood - null))
    degrees = (len(fit.names) - 1) * fit.features.shape[1]
    return Homogeneity(statistic, degrees, float(chi2.sf(statistic, degrees)))


def expectation(fit: DensityRatioFit, function: Callable[[Any], ArrayLike]) -> Estimate:
    """The mean of a function in every population, estimated from the pooled sample: one row per population."""
    parts = [np.asarray(function(sample), dtype=np.float64) for sample in fit.samples]
    for name, part, sample in zip(fit.names, parts, fit.samples, strict=True):
        if part.ndim not in (1, 2) or len(part) != len(sample) or not np.isfinite(part).all():
            raise FeddrmError(
                f"population '{name}': the function made an array of shape {part.shape} from {len(sample)} "
                f"observations: it must return one row of finite numbers for each"
            )
    values = np.vstack([part[:, None] if part.ndim == 1 else part for part in parts])
    return _expectation(fit, values)


def mean(fit: DensityRatioFit) -> Estimate:
    """The mean of every column (second axis) in every population (first axis)."""
    return _expectation(fit, fit.values)


def distribution(fit: DensityRatioFit, at: ArrayLike) -> Estimate:
    """The distribution function of every population (first axis) at every point of ``at`` (second axis)."""
    points = np.atleast_1d(np.asarray(at, dtype=np.float64))
    if np.isnan(points).any():
        raise SettingError(f"distribution at {points.tolist()}: give numbers")
    return _expectation(fit, (_single(fit)[:, None] <= points).astype(np.float64))


def quantile(fit: DensityRatioFit, levels: ArrayLike) -> Floats:
    """Quantiles of every population (first axis): where its estimated distribution first reaches each level."""
    probabilities = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if not ((probabilities > 0) & (probabilities < 1)).all():
        raise SettingError(f"quantile levels {probabilities.tolist()}: give numbers between 0 and 1")
    return _inverse(fit, np.tile(probabilities, (len(fit.names), 1)))


def quantile_interval(fit: DensityRatioFit, levels: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Confidence limits of quantiles, by inverting those of the distribution (Woodruff). Needs no density estimate."""
    centre = quantile(fit, levels)
    reach = _quantile_of_normal(confidence)
    error = np.vstack([distribution(fit, row).error[i] for i, row in enumerate(centre)])
    probabilities = np.broadcast_to(np.atleast_1d(np.asarray(levels, dtype=np.float64)), centre.shape)
    return _inverse(fit, probabilities - reach * error), _inverse(fit, probabilities + reach * error)


def _inverse(fit: DensityRatioFit, levels: Floats) -> Floats:
    x = _single(fit)
    order = np.argsort(x, kind="stable")
    heights = np.cumsum(fit.weights[order], axis=0)
    heights /= heights[-1]
    rows = [
        x[order][np.minimum(np.searchsorted(heights[:, i], row * (1 - 1e-14)), len(x) - 1)]
        for i, row in enumerate(levels)
    ]
    return np.vstack(rows)


def _expectation(fit: DensityRatioFit, values: Floats) -> Estimate:
    """Estimate ``sum_ij w_l(x_ij) f(x_ij)``. Its influence has a direct part and a part through the tilts."""
    posterior, design = fit.optimum.posterior, fit.design
    estimate = fit.weights.T @ values
    coefficients = _coefficient_influence(fit)
    error = np.empty_like(estimate)
    for population in range(len(fit.names)):
        mass = posterior[:, population] / fit.counts[population]
        # d mass / d coefficients of population k = mass (1[k is this one] - posterior_k) design
        change = mass[:, None] * ((np.arange(len(fit.names)) == population) - posterior)[:, 1:]
        slope = np.einsum("nk,nz,nv->kzv", change, design, values, optimize=True).reshape(-1, values.shape[1])
        influence = mass[:, None] * values + coefficients @ slope
        error[population] = np.sqrt(np.diag(_within(fit, influence)))
    return Estimate(estimate, error)


def _coefficient_influence(fit: DensityRatioFit) -> Floats:
    """The influence of each observation on the whitened coefficients: inverse information times its score."""
    posterior, design = fit.optimum.posterior, fit.design
    residual = np.eye(len(fit.names))[fit.owner] - posterior
    scores = (residual[:, 1:, None] * design[:, None, :]).reshape(len(design), -1)
    return np.asarray(cho_solve(cho_factor(information(design, posterior, fit.ridge_matrix)), scores.T).T)


def _within(fit: DensityRatioFit, influence: Floats) -> Floats:
    """The covariance of a sum of influences over samples of fixed sizes."""
    total = np.zeros((influence.shape[1], influence.shape[1]))
    for i, n in enumerate(fit.counts):
        centred = influence[fit.owner == i] - influence[fit.owner == i].mean(0)
        total += n / (n - 1) * centred.T @ centred
    return total


def _single(fit: DensityRatioFit) -> Floats:
    if fit.values.shape[1] != 1:
        raise FeddrmError(f"distribution functions and quantiles need one column, not {fit.values.shape[1]}")
    return fit.values[:, 0]


def _quantile_of_normal(level: float) -> float:
    if not 0 < level < 1:
        raise SettingError(f"confidence {level}: give a number between 0 and 1, such as 0.95")
    return float(norm.ppf(0.5 + level / 2))
