"""Comparison of quantiles between populations: differences with errors, Wald and empirical likelihood ratio tests.

The empirical likelihood ratio adds the constraints ``F_i(cut) = level`` to those of the model (Zhang, Zhu and Chen,
2020). With ``t_i = 1 + mu_i (1[x <= cut] - level)`` the constrained maximum is the saddle point, lowest in the
multipliers mu and highest in the tilts, of the dual likelihood in which every density of a population is multiplied
by its ``t_i``. The cut is then varied to where the ratio is least.

Where observations are equal, the distribution functions jump: the cut is the quantile of every population with
``F_i(cut-) <= level <= F_i(cut)``. Only a population for which this fails is then constrained, to the nearer end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.stats import chi2

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.inference.estimates import (
    Estimate,
    check_levels,
    quantile,
    quantile_estimate,
    quantile_interval,
    single_column,
)
from feddrm.drm.inference.hypothesis_tests import STATISTICS, HypothesisTest
from feddrm.drm.inference.resampling import require_no_ridge
from feddrm.drm.logistic import information
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import check_choice

MOST_STEPS = 60
GRID = 9  # cuts that are tried at a time


def quantile_differences(fit: DensityRatioFit, levels: Sequence[float], against: str | int = 0) -> Estimate:
    """Quantiles of every population (first axis) at every level, less those of the population ``against``."""
    place = fit.index(against)
    centre, covariances = quantile_estimate(fit, levels)
    variance = np.diagonal(covariances, axis1=1, axis2=2).T
    spread = variance + variance[place] - 2 * covariances[:, :, place].T
    return Estimate(centre.value - centre.value[place], np.sqrt(np.maximum(spread, 0.0)))


def quantile_difference_interval(
    fit: DensityRatioFit, levels: Sequence[float], confidence: float = 0.95, against: str | int = 0
) -> tuple[Floats, Floats]:
    """Confidence limits of :func:`quantile_differences`.

    A quantile that several observations share moves in jumps, and has no density. The limits are then made of those
    of both quantiles (MOVER; Zou and Donner, 2008), as of independent ones: they are rather too wide.
    """
    place, x = fit.index(against), single_column(fit)
    low, high = quantile_differences(fit, levels, place).interval(confidence)
    centre, (least, most) = quantile(fit, levels), quantile_interval(fit, levels, confidence)
    difference, tied = centre - centre[place], (x == centre[..., None]).sum(-1) > 1
    tied |= tied[place]
    tied[place] = False
    below = np.hypot(centre - least, (most - centre)[place])
    above = np.hypot(most - centre, (centre - least)[place])
    return np.where(tied, difference - below, low), np.where(tied, difference + above, high)


def equal_quantiles(
    fit: DensityRatioFit,
    level: float,
    populations: Sequence[str | int] | None = None,
    statistic: str = STATISTICS[0],
) -> HypothesisTest:
    """Test whether these populations (all by default) have the same quantile at this level."""
    check_choice("statistic", statistic, STATISTICS)
    require_no_ridge(fit, "the test of quantiles")
    chosen = range(len(fit.names)) if populations is None else populations
    places = sorted({fit.index(population) for population in chosen})
    if len(places) < 2:
        raise SettingError(f"quantiles of {list(chosen)}: give two populations or more")
    level = float(check_levels(level)[0])
    value = (_wald if statistic == STATISTICS[1] else _likelihood_ratio)(fit, level, places)
    name = f"quantile {level:g}: " + " = ".join(fit.names[place] for place in places)
    return HypothesisTest(name, value, len(places) - 1, float(chi2.sf(value, len(places) - 1)))


def _wald(fit: DensityRatioFit, level: float, places: list[int]) -> float:
    centre, covariances = quantile_estimate(fit, level)
    contrast = np.hstack([-np.ones((len(places) - 1, 1)), np.eye(len(places) - 1)])
    gap = contrast @ centre.value[places, 0]
    return float(gap @ np.linalg.solve(contrast @ covariances[0][np.ix_(places, places)] @ contrast.T, gap))


def _likelihood_ratio(fit: DensityRatioFit, level: float, places: list[int]) -> float:
    """The least ratio over all cuts between the smallest and the largest of the estimated quantiles.

    The ratio is a step function with steps at the observations, and nearly a parabola: a grid that becomes finer
    around its best cut finds the least. The step below the smallest quantile may be nearer to the level than its own.
    """
    x = np.unique(single_column(fit))
    centre = quantile_estimate(fit, level)[0].value[places, 0]
    low, high = (int(place) for place in np.searchsorted(x, (centre.min(), centre.max())))
    low = max(0, low - 1)

    @cache
    def ratio(place: int) -> float:
        return _ratio_at(fit, level, places, float(x[place]))

    while True:
        grid = sorted(set(np.linspace(low, high, GRID).astype(int).tolist()))
        best = min(grid, key=ratio)
        if ratio(best) == np.inf:
            raise FeddrmError(
                f"the likelihood ratio of quantile {level:g} has no solution: too few observations on one side: choose "
                f"a level nearer to 0.5, or the statistic 'wald'"
            )
        if len(grid) == high - low + 1:
            return ratio(best)
        place = grid.index(best)
        low, high = grid[max(0, place - 1)], grid[min(len(grid) - 1, place + 1)]


def _ratio_at(fit: DensityRatioFit, level: float, places: list[int], cut: float) -> float:
    """Twice the loss of log likelihood if the populations have this quantile; infinite where they cannot have it."""
    x = single_column(fit)
    if (x == cut).sum() <= 1:
        return _constrained(fit, places, np.repeat(((x <= cut) - level)[:, None], len(places), axis=1))[0]
    ends = np.stack([x < cut, x <= cut]) - level
    end: dict[int, int | None] = dict.fromkeys(places)  # of the jump, to which a population is held
    value, mass, mu = 0.0, fit.weights, np.zeros(0)
    for _ in range(MOST_STEPS):
        held = [place for place in places if end[place] is not None]
        # A multiplier of the wrong sign pulls away from the jump; let go.
        changed: dict[int, int | None] = {
            place: None for place, pull in zip(held, mu, strict=True) if (pull < 0) == (end[place] == 0)
        }
        for place in set(places) - set(held):
            below, up_to = ends @ mass[:, place]
            if below > 1e-9 or up_to < -1e-9:
                changed[place] = 0 if below > 0 else 1
        if not changed:
            break
        end |= changed
        sides = {place: ends[side] for place, side in end.items() if side is not None}
        value, mass, mu = _constrained(fit, list(sides), np.column_stack([*sides.values()]))
        if value == np.inf:
            break
    return value


def _constrained(fit: DensityRatioFit, places: list[int], sides: Floats) -> tuple[float, Floats, Floats]:
    """The ratio where the populations' means of ``sides`` are zero, the populations' masses and the multipliers."""
    if ((sides > 0).all(0) | (sides < 0).all(0)).any():  # above the largest observation, or below the smallest
        return float("inf"), fit.weights, np.zeros(len(places))
    problem = _Saddle(fit, places, sides)
    b, mu = fit.optimum.coefficients[1:].copy(), np.zeros(len(places))
    state = problem.at(b, mu)
    for _ in range(MOST_STEPS):
        if state is None:
            break
        gradient, matrix, value = state
        if np.abs(gradient).max() <= 1e-9 * len(fit.owner):
            return max(0.0, 2 * (fit.log_likelihood - value)), problem.masses(b, mu) / fit.counts, mu
        step = np.linalg.solve(matrix, -gradient)
        size, state = 1.0, None
        while size > 1e-6:
            trial = b + size * step[: b.size].reshape(b.shape), mu + size * step[b.size :]
            state = problem.at(*trial)
            if state is not None and np.linalg.norm(state[0]) < (1 - 1e-4 * size) * np.linalg.norm(gradient):
                b, mu = trial
                break
            size, state = size / 2, None
    return float("inf"), fit.weights, mu


class _Saddle:
    """The dual likelihood with multipliers of the constraints at one cut: derivatives and value."""

    def __init__(self, fit: DensityRatioFit, places: list[int], sides: Floats) -> None:
        self.design, self.places, self.sides = fit.design, places, sides
        self.own = np.vstack([part.sum(0) for part in np.split(fit.design, np.cumsum(fit.counts)[:-1])[1:]])

    def at(self, b: Floats, mu: Floats) -> tuple[Floats, Floats, float] | None:
        """Gradient and second derivative in (tilts, multipliers), and the value; None where a mass is not positive.

        A single factor may be negative. Only the sum over populations has to be positive.
        """
        top, _, pull, p = self._parts(b, mu)
        total = p.sum(1, keepdims=True)
        if total.min() <= 1e-10:
            return None
        p /= total
        pull /= total
        value = float((self.own * b).sum() - (top + np.log(total)).sum())
        gradient = np.concatenate([(self.own - p[:, 1:].T @ self.design).ravel(), -pull.sum(0)])
        same = np.arange(1, p.shape[1])[:, None] == self.places
        mixed = np.vstack([-self.design.T @ ((same[a - 1] - p[:, [a]]) * pull) for a in range(1, p.shape[1])])
        blank = np.zeros((self.design.shape[1],) * 2)
        matrix = np.block([[-information(self.design, p, blank), mixed], [mixed.T, pull.T @ pull]])
        return gradient, matrix, value

    def masses(self, b: Floats, mu: Floats) -> Floats:
        """The mass of every population at every observation, times its size."""
        _, density, _, p = self._parts(b, mu)
        return np.asarray(density / p.sum(1, keepdims=True))

    def _parts(self, b: Floats, mu: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        logits = np.hstack([np.zeros((len(self.design), 1)), self.design @ b.T])
        top = logits.max(1, keepdims=True)
        density = np.exp(logits - top)
        pull = density[:, self.places] * self.sides
        p = density.copy()
        p[:, self.places] += pull * mu
        return top, density, pull, p
