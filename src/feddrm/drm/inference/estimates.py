"""Estimates from a fit, with standard errors: tilts, means, distributions, quantiles, dominance.

Every estimate is a smooth function of the pooled sample, so one influence value per observation gives its
variance. The influences are centred within each population, because the sizes of the samples are fixed by design.
This sandwich variance also holds if the model is only approximately right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from scipy.stats import norm, t

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.errors import FeddrmError, SettingError, quoted
from feddrm.typed_settings import typed_arguments


@dataclass(frozen=True)
class Estimate:
    """A number, or an array of them, with standard errors.

    ``degrees`` are degrees of freedom of the errors, for t instead of normal intervals; one per row of the value, or
    one per number.
    A ``probability`` has its interval on the scale of the log odds, which keeps it between 0 and 1.
    """

    value: Floats
    error: Floats
    degrees: Floats | None = None
    probability: bool = False

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """A two-sided confidence interval."""
        reach = normal_quantile(level) * self.error
        if self.degrees is not None:
            degrees = self.degrees if self.degrees.ndim == self.value.ndim else self.degrees[:, None]
            reach = t.ppf(0.5 + level / 2, degrees) * self.error
        if not self.probability:
            return self.value - reach, self.value + reach
        inside = np.clip(self.value, 1e-12, 1 - 1e-12)
        odds, size = logit(inside), reach / (inside * (1 - inside))
        return expit(odds - size), expit(odds + size)


def coefficient_covariance(fit: DensityRatioFit) -> Floats:
    """Sandwich covariance of (gamma, xi) of every population but the first, in that order.

    It is the same for both kinds of gamma, because they differ by a constant. The bias of a ridge is not included.
    """
    back = np.kron(np.eye(len(fit.names) - 1), fit.whitening.back)
    return np.asarray(back @ within_covariance(fit, fit.coefficient_influence) @ back.T)


@typed_arguments
def tilts(fit: DensityRatioFit) -> Estimate:
    """One row (gamma dagger, xi) per population; the first is zero and has no error."""
    value = np.column_stack([fit.gamma_dagger, fit.xi])
    error = np.zeros_like(value)
    error[1:] = np.sqrt(np.diag(coefficient_covariance(fit))).reshape(len(fit.names) - 1, -1)
    return Estimate(value, error)


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


@typed_arguments
def mean(fit: DensityRatioFit) -> Estimate:
    """The mean of every column (second axis) in every population (first axis)."""
    return _expectation(fit, fit.values)


def distribution(fit: DensityRatioFit, at: ArrayLike) -> Estimate:
    """The distribution function of every population (first axis) at every point of ``at`` (second axis)."""
    points = np.atleast_1d(np.asarray(at, dtype=np.float64))
    if np.isnan(points).any():
        raise SettingError(f"distribution at {points.tolist()}: give numbers")
    estimate = _expectation(fit, (single_column(fit)[:, None] <= points).astype(np.float64))
    return Estimate(np.clip(estimate.value, 0, 1), estimate.error, probability=True)


@typed_arguments
def dominance(fit: DensityRatioFit) -> Estimate:
    """``P(X_i < X_j) + P(X_i = X_j) / 2`` for every two populations, i in rows and j in columns."""
    x, size = single_column(fit), len(fit.names)
    middle = np.column_stack([_mid_distribution(x, fit.weights[:, i]) for i in range(size)])
    value, error = np.full((size, size), 0.5), np.zeros((size, size))
    for i in range(size):
        # A functional of two distributions: the sum of its influences through either one.
        through_other = [influence_of_mean(fit, j, middle[:, [i]]) for j in range(size)]
        through_own = influence_of_mean(fit, i, 1 - middle)
        for j in set(range(size)) - {i}:
            value[i, j] = fit.weights[:, j] @ middle[:, i]
            error[i, j] = np.sqrt(within_covariance(fit, through_other[j] + through_own[:, [j]])[0, 0])
    return Estimate(value, error, probability=True)


def _mid_distribution(x: Floats, weights: Floats) -> Floats:
    """The distribution function at every observation, with half of the mass at it."""
    points, place = np.unique(x, return_inverse=True)
    mass = np.bincount(place, weights, len(points))
    return np.asarray((np.cumsum(mass) - mass / 2)[place])


def quantile(fit: DensityRatioFit, levels: ArrayLike) -> Floats:
    """Quantiles of every population (first axis): where its estimated distribution first reaches each level."""
    probabilities = np.tile(check_levels(levels), (len(fit.names), 1))
    return weighted_quantiles(single_column(fit), fit.weights, probabilities)


def quantile_interval(fit: DensityRatioFit, levels: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Confidence limits of quantiles, by inverting those of the distribution (Woodruff). Needs no density estimate."""
    centre, x, probabilities = quantile(fit, levels), single_column(fit), check_levels(levels)
    reach = normal_quantile(confidence)

    def error(points: Floats) -> Floats:
        parts = [(x[:, None] <= row).astype(np.float64) for row in points]
        return np.vstack([np.sqrt(_variances(fit, influence_of_mean(fit, i, part))) for i, part in enumerate(parts)])

    above = error(centre)
    below = np.maximum(above, error(before_jumps(x, centre)))
    return (
        weighted_quantiles(x, fit.weights, probabilities - reach * below),
        weighted_quantiles(x, fit.weights, probabilities + reach * above),
    )


def before_jumps(x: Floats, points: Floats) -> Floats:
    """Numbers just below the points that several observations share: a smaller quantile depends on what is there."""
    return np.where((x == points[..., None]).sum(-1) > 1, np.nextafter(points, -np.inf), points)


def quantile_estimate(fit: DensityRatioFit, levels: ArrayLike) -> tuple[Estimate, Floats]:
    """Quantiles with standard errors by the estimated density, and the covariance over populations at each level.

    The covariance has one matrix, of populations by populations, per level.
    """
    centre = quantile(fit, levels)
    x, covariances = single_column(fit), []
    for column in centre.T:
        below = (x[:, None] <= column).astype(np.float64)
        influence = np.column_stack([influence_of_mean(fit, i, below[:, [i]])[:, 0] for i in range(len(fit.names))])
        heights = [_height(fit, x, fit.weights[:, i], column[[i]]) for i in range(len(column))]
        covariances.append(within_covariance(fit, influence) / np.outer(heights, heights))
    errors = np.sqrt(np.array([np.diag(matrix) for matrix in covariances]).T)
    return Estimate(centre, errors), np.array(covariances)


def density(fit: DensityRatioFit, population: str | int, at: Floats, column: int = 0) -> Floats:
    """A smooth density of a column in a population, from all observations.

    Where the basis takes logarithms it is estimated on their scale, so that it is 0 below 0.
    """
    return density_estimate(fit, population, at, column).value


def density_estimate(fit: DensityRatioFit, population: str | int, at: Floats, column: int = 0) -> Estimate:
    """The same with standard errors. They do not include the bias of smoothing, which flattens peaks."""
    x, place = fit.values[:, column], fit.index(population)
    weights, error = fit.weights[:, place], np.empty(len(at))
    value = np.empty(len(at))
    for start in range(0, len(at), size := max(1, 2_000_000 // len(x))):
        part = slice(start, start + size)
        kernels = _kernels(fit, x, weights, at[part], _gaussian)
        value[part] = weights @ kernels
        error[part] = np.sqrt(_variances(fit, influence_of_mean(fit, place, kernels)))
    return Estimate(value, error)


def _kernels(fit: DensityRatioFit, x: Floats, weights: Floats, at: Floats, kernel: Callable[..., Floats]) -> Floats:
    """The kernel of every observation (rows) at every point."""
    if any("log" in term for term in fit.terms) and x.min() > 0:
        inside = at > 0
        out = np.zeros((len(x), len(at)))
        out[:, inside] = kernel(np.log(x), weights, np.log(at[inside])) / at[inside]
        return out
    return kernel(x, weights, at)


def _gaussian(x: Floats, weights: Floats, at: Floats) -> Floats:
    width = _kernel_width(x, weights)
    return np.asarray(np.exp(-(((at - x[:, None]) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi)))


def _fourth_order(x: Floats, weights: Floats, at: Floats) -> Floats:
    """A kernel of fourth order: a Gaussian one flattens peaks, and errors of medians would be too large."""
    width = 1.3 * _kernel_width(x, weights)
    scaled = (at - x[:, None]) / width
    return np.asarray(np.exp(-(scaled**2) / 2) * (3 - scaled**2) / 2 / (width * np.sqrt(2 * np.pi)))


def _height(fit: DensityRatioFit, x: Floats, weights: Floats, at: Floats) -> float:
    """The density at one point for the error of a quantile; far out the kernel of fourth order may be negative."""
    fourth, second = (float(weights @ _kernels(fit, x, weights, at, kind)[:, 0]) for kind in (_fourth_order, _gaussian))
    return max(fourth, second / 2)


def _kernel_width(x: Floats, weights: Floats) -> float:
    """Silverman's robust width for weighted observations."""
    order = np.argsort(x)
    low, high = x[order][np.minimum(np.searchsorted(np.cumsum(weights[order]), (0.25, 0.75)), len(x) - 1)]
    spread = float(np.sqrt(weights @ (x - weights @ x) ** 2))
    robust = min(spread, (high - low) / 1.349) or spread or 1.0
    return float(0.9 * robust * (weights**2).sum() ** 0.2)


def weighted_quantiles(x: Floats, weights: Floats, levels: Floats) -> Floats:
    """Where each column's distribution first reaches its row of levels."""
    order = np.argsort(x, kind="stable")
    heights = np.cumsum(weights[order], axis=0)
    heights /= heights[-1]
    rows = [
        x[order][np.minimum(np.searchsorted(heights[:, i], row * (1 - 1e-14)), len(x) - 1)]
        for i, row in enumerate(levels)
    ]
    return np.vstack(rows)


def _expectation(fit: DensityRatioFit, values: Floats) -> Estimate:
    """Estimate ``sum_ij w_l(x_ij) f(x_ij)`` with its error in every population."""
    error = [np.sqrt(_variances(fit, influence_of_mean(fit, i, values))) for i in range(len(fit.names))]
    return Estimate(fit.weights.T @ values, np.vstack(error), degrees=(fit.counts - 1).astype(np.float64))


def influence_of_mean(fit: DensityRatioFit, population: int, values: Floats) -> Floats:
    """The influence of each observation on a population's means of ``values``: a direct part, one through the tilts."""
    posterior, others = fit.optimum.posterior, np.arange(1, len(fit.names))
    mass = fit.weights[:, population]
    # d mass / d coefficients of population k = mass (1[k is this one] - posterior_k) design
    weighted = mass[:, None] * values
    slope = np.vstack([fit.design.T @ (((k == population) - posterior[:, k])[:, None] * weighted) for k in others])
    return np.asarray(weighted + fit.coefficient_influence @ slope)


def within_covariance(fit: DensityRatioFit, influence: Floats) -> Floats:
    """The covariance of a sum of influences over samples of fixed sizes."""
    total = np.zeros((influence.shape[1], influence.shape[1]))
    for part, n in _centred(fit, influence):
        total += n / (n - 1) * part.T @ part
    return total


def _variances(fit: DensityRatioFit, influence: Floats) -> Floats:
    """The diagonal of :func:`within_covariance`."""
    return np.asarray(variance_parts(fit, influence).sum(0))


def variance_parts(fit: DensityRatioFit, influence: Floats) -> Floats:
    """What the sample of every population (rows) adds to the variances."""
    return np.array([n / (n - 1) * (part**2).sum(0) for part, n in _centred(fit, influence)])


def _centred(fit: DensityRatioFit, influence: Floats) -> Iterator[tuple[Floats, int]]:
    """Each population's influences less their mean; the observations of a population are neighbours."""
    for part in np.split(influence, np.cumsum(fit.counts)[:-1]):
        yield part - part.mean(0), len(part)


def single_column(fit: DensityRatioFit) -> Floats:
    """The pooled observations of a fit with one column."""
    if fit.values.shape[1] != 1:
        raise FeddrmError(f"distribution functions and quantiles need one column, not {fit.values.shape[1]}")
    return fit.values[:, 0]


def check_levels(levels: ArrayLike) -> Floats:
    """Levels of quantiles as an array; refuses those outside of (0, 1)."""
    try:
        probabilities = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SettingError(f"quantile levels {quoted(levels)}: give numbers between 0 and 1") from error
    if not probabilities.size or not ((probabilities > 0) & (probabilities < 1)).all():
        raise SettingError(f"quantile levels {probabilities.tolist()}: give numbers between 0 and 1")
    return probabilities


def normal_quantile(level: float) -> float:
    """How many standard errors a two-sided interval reaches."""
    check_confidence(level)
    return float(norm.ppf(0.5 + level / 2))


def check_confidence(level: float) -> None:
    """Refuse what is no confidence level."""
    if not 0 < level < 1:
        raise SettingError(f"confidence {level}: give a number between 0 and 1, such as 0.95")
