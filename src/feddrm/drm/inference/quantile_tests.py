"""Comparison of quantiles between populations: differences with errors, Wald and empirical likelihood ratio tests.

The empirical likelihood ratio adds the constraints ``F_i(cut) = level`` to those of the model (Zhang, Zhu and Chen,
2020). With ``t_i = 1 + mu_i (1[x <= cut] - level)`` the constrained maximum is the saddle point, lowest in the
multipliers mu and highest in the tilts, of the dual likelihood with ``t_i`` times the density of population i in its
denominator, the sum over populations. The cut is then varied to where the ratio is least.

Where observations are equal, the distribution functions jump: the cut is the quantile of every population with
``F_i(cut-) <= level <= F_i(cut)``. Only a population for which this fails is then constrained, to the nearer end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from feddrm.drm.inference.resampling import CACHED_CELLS, require_no_ridge
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import check_choice

MOST_STEPS = 60
GRID = 9  # cuts that are tried where the first one has no solution
CLOSER = 16  # times, around the vertex of a parabola
LEAST_BEYOND = 0.5  # observations that are expected beyond a quantile
# Of cuts where observations may be equal: so many on either side of the parabola's least, and those with most.
NEAR, HEAVIEST = 4, 8
Solutions = dict[tuple[int, ...], tuple[Floats, Floats]]  # tilts and multipliers, by the populations that are held


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
    require_reached(fit, level, places)
    value = (_wald if statistic == STATISTICS[1] else _likelihood_ratio)(fit, level, places)
    name = f"quantile {level:g}: " + " = ".join(fit.names[place] for place in places)
    return HypothesisTest(name, value, len(places) - 1, float(chi2.sf(value, len(places) - 1)))


def require_reached(fit: DensityRatioFit, level: float, places: Sequence[int]) -> None:
    """Refuse a quantile beyond the last observation of these populations: nobody knows how far it lies.

    Where several observations share the last value, the quantile is that value.
    """
    x, size = single_column(fit), int(fit.counts[list(places)].sum())
    expected, last = (level * size, x.min()) if level < 0.5 else ((1 - level) * size, x.max())
    if expected < LEAST_BEYOND and (x == last).sum() == 1:
        raise FeddrmError(
            f"quantile {level:g} has neither test nor interval: of {size} observations, {expected:.2g} are expected "
            f"beyond it: choose a level nearer to 0.5"
        )


def _wald(fit: DensityRatioFit, level: float, places: list[int]) -> float:
    centre, covariances = quantile_estimate(fit, level)
    contrast = np.hstack([-np.ones((len(places) - 1, 1)), np.eye(len(places) - 1)])
    gap = contrast @ centre.value[places, 0]
    return float(gap @ np.linalg.solve(contrast @ covariances[0][np.ix_(places, places)] @ contrast.T, gap))


def _likelihood_ratio(fit: DensityRatioFit, level: float, places: list[int]) -> float:
    """The least ratio over all cuts between the smallest and the largest of the estimated quantiles.

    The step below the smallest quantile may be nearer to the level than its own. If every observation up to a cut is
    held to the level, the ratio is nearly a parabola of the cut's rank. Where observations are equal, only a jump has
    to reach the level: that is easier, most of all where many are equal.
    """
    x, rank, equal = np.unique(single_column(fit), return_inverse=True, return_counts=True)
    centre = quantile(fit, level)[places, 0]
    low, high = (int(place) for place in np.searchsorted(x, (centre.min(), centre.max())))
    low, solutions = max(0, low - 1), Solutions()
    # Equal populations have the quantile of all of them, with an error of about the root of their size.
    mass = np.bincount(rank, fit.optimum.posterior[:, places].sum(1))
    start = min(max(low, int(np.searchsorted(np.cumsum(mass), level * mass.sum()))), high)

    @cache
    def parabola(place: int) -> float:
        return _Saddle(fit, places, np.repeat([(rank <= place) - level], len(places), axis=0)).ratio(solutions)[0]

    reach = max(1, int(np.sqrt(level * (1 - level) * mass.sum()) / 4))
    best = start if high - low <= NEAR else _least(parabola, low, high, start, reach)
    near = range(max(low, best - NEAR), min(high, best + NEAR) + 1)
    cuts = dict.fromkeys([*near, *sorted(range(low, high + 1), key=lambda place: -int(equal[place]))[:HEAVIEST]])
    untied = equal[low : high + 1].max() == 1 and high - low > NEAR
    value = parabola(best) if untied else min(_ratio_at(fit, level, places, float(x[cut]), solutions) for cut in cuts)
    if value == np.inf:
        raise FeddrmError(
            f"the likelihood ratio of quantile {level:g} has no solution: too few observations on one side: choose "
            f"a level nearer to 0.5, or the statistic 'wald'"
        )
    return value


def _least(value: Callable[[int], float], low: int, high: int, middle: int, reach: int) -> int:
    """The place between two of the least value of a function that is nearly a parabola.

    The least of three places becomes the middle one of the next three. If it was the middle one already, the vertex of
    the parabola through them is tried, too, and the next three are closer.
    """
    if value(middle) == np.inf:
        middle = min(np.linspace(low, high, GRID).astype(int).tolist(), key=value)
    while value(middle) < np.inf:
        left, right = max(low, middle - reach), min(high, middle + reach)
        best = min((middle, left, right), key=value)
        if best != middle:
            middle, reach = best, 2 * reach
        elif reach > 1:
            middle = min((middle, _vertex(value, left, middle, right)), key=value)
            reach = max(1, reach // CLOSER)
        else:
            break
    return middle


def _vertex(value: Callable[[int], float], left: int, middle: int, right: int) -> int:
    """Where the parabola through three values is least; ``middle`` has the least of them."""
    before, after = middle - left, right - middle
    steep, flat = (value(left) - value(middle)) * after, (value(right) - value(middle)) * before
    if not 0 < steep + flat < np.inf:
        return middle
    return middle + round((steep * after - flat * before) / (2 * (steep + flat)))


def _ratio_at(
    fit: DensityRatioFit, level: float, places: list[int], cut: float, solutions: Solutions | None = None
) -> float:
    """Twice the loss of log likelihood if the populations have this quantile; infinite where they cannot have it.

    ``solutions`` are those at the cut before, where the solver starts; they are replaced.
    """
    x, solutions = single_column(fit), {} if solutions is None else solutions
    if (x == cut).sum() <= 1:
        return _Saddle(fit, places, np.repeat(((x <= cut) - level)[None], len(places), axis=0)).ratio(solutions)[0]
    ends = np.stack([x < cut, x <= cut]) - level
    end: dict[int, int | None] = dict.fromkeys(places)  # of the jump, to which a population is held
    value, mass, mu = 0.0, fit.weights.T, np.zeros(0)
    for _ in range(MOST_STEPS):
        held = [place for place in places if end[place] is not None]
        # A multiplier of the wrong sign pulls away from the jump; let go.
        changed: dict[int, int | None] = {
            place: None for place, pull in zip(held, mu, strict=True) if (pull < 0) == (end[place] == 0)
        }
        for place in set(places) - set(held):
            below, up_to = ends @ mass[place]
            if below > 1e-9 or up_to < -1e-9:
                changed[place] = 0 if below > 0 else 1
        if not changed:
            break
        end |= changed
        sides = {place: ends[side] for place, side in end.items() if side is not None}
        problem = _Saddle(fit, list(sides), np.stack([*sides.values()]))
        value, b, mu = problem.ratio(solutions)
        if value == np.inf:
            break
        mass = problem.masses(b, mu)
    return value


class _Saddle:
    """The dual likelihood with multipliers: the populations at ``places`` have means of ``sides`` that are zero."""

    def __init__(self, fit: DensityRatioFit, places: list[int], sides: Floats) -> None:
        self.fit, self.design, self.places, self.sides = fit, fit.design, places, sides
        self.own = np.vstack([part.sum(0) for part in np.split(fit.design, np.cumsum(fit.counts)[:-1])[1:]])

    def ratio(self, solutions: Solutions) -> tuple[float, Floats, Floats]:
        """Twice the loss of log likelihood, the tilts and the multipliers; infinite if there is no solution."""
        unconstrained = self.fit.optimum.coefficients[1:], np.zeros(len(self.places))
        if not ((self.sides > 0).all(1) | (self.sides < 0).all(1)).any():  # as above the largest observation
            for start in (solutions.get(tuple(self.places)), unconstrained):
                if start is not None and (solution := self._solve(*start)) is not None:
                    b, mu, value = solution
                    solutions[tuple(self.places)] = b, mu
                    return max(0.0, 2 * (self.fit.log_likelihood - value)), b, mu
        return float("inf"), *unconstrained

    def _solve(self, b: Floats, mu: Floats) -> tuple[Floats, Floats, float] | None:
        """Newton's method for tilts and multipliers, and the value there; None if it finds no solution."""
        state = self.at(b, mu)
        for _ in range(MOST_STEPS):
            if state is None:
                break
            gradient, matrix, value = state
            if np.abs(gradient).max() <= 1e-9 * len(self.design):
                return b, mu, value
            step = np.linalg.solve(matrix, -gradient)
            size, state = 1.0, None
            while size > 1e-6:
                trial = b + size * step[: b.size].reshape(b.shape), mu + size * step[b.size :]
                state = self.at(*trial)
                if state is not None and np.linalg.norm(state[0]) < (1 - 1e-4 * size) * np.linalg.norm(gradient):
                    b, mu = trial
                    break
                size, state = size / 2, None
        return None

    def at(self, b: Floats, mu: Floats) -> tuple[Floats, Floats, float] | None:
        """Gradient and second derivative in (tilts, multipliers), and the value; None where a mass is not positive.

        A single factor may be negative. Only the sum over populations has to be positive.
        """
        k, unknowns = self.design.shape[1], b.size + len(mu)
        value, sums, matrix = float((self.own * b).sum()), np.zeros((unknowns, k)), np.zeros((unknowns, unknowns))
        length = max(1, CACHED_CELLS // unknowns)
        for start in range(0, len(self.design), length):
            part = slice(start, start + length)
            top, _, pull, p = self._parts(b, mu, part)
            total = p.sum(0)
            if total.min() <= 1e-10:
                return None
            value -= float((top + np.log(total)).sum())
            # One row per unknown: the derivative of the logarithm of the total at every observation.
            rows = np.concatenate([(p[1:, None] * self.design[part].T).reshape(b.size, -1), pull])
            rows *= 1 / total
            sums += rows @ self.design[part]
            matrix += rows @ rows.T
        gradient = np.append(self.own, np.zeros(len(mu))) - sums[:, 0]
        blocks = [slice(start, start + k) for start in range(0, b.size, k)]
        for block in blocks:
            matrix[block, block] -= sums[block]
        for row, place in enumerate(self.places, b.size):
            if place:
                matrix[blocks[place - 1], row] -= sums[row]
                matrix[row, blocks[place - 1]] -= sums[row]
        return gradient, matrix, value

    def masses(self, b: Floats, mu: Floats) -> Floats:
        """The mass of every population at every observation."""
        _, density, _, p = self._parts(b, mu, slice(None))
        return np.asarray(density / p.sum(0) / self.fit.counts[:, None])

    def _parts(self, b: Floats, mu: Floats, part: slice) -> tuple[Floats, Floats, Floats, Floats]:
        design = self.design[part]
        logits = np.vstack([np.zeros(len(design)), b @ design.T])
        top = logits.max(0)
        density = np.exp(logits - top)
        pull = density[self.places] * self.sides[:, part]
        p = density.copy()
        p[self.places] += pull * mu[:, None]
        return top, density, pull, p
