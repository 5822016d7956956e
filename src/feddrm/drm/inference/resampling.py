"""Many fits at once: bootstrap and permutation replicates as counts of the same pooled observations.

A replicate says how often every population draws every pooled observation. All replicates then share one design
matrix, and Newton's steps of all of them are a few matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, t

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.inference.estimates import check_confidence
from feddrm.errors import FeddrmError, SettingError

MOST_CELLS = 400_000  # of one population's table of observations by replicates
CACHED_CELLS = 32_768  # of all populations' tables of some observations by replicates: they stay in the cache
LARGEST = 600.0  # of logits: sums of their exponentials are still finite
MOST_STEPS = 30
SETTLED = 1e-3  # a step this small is the last: Newton's steps square the error
MOST_LOST = 0.1  # of the replicates may have no finite fit


@dataclass(frozen=True, eq=False)
class Refits:
    """The fits of replicates that have one; ``counts`` is indexed by population, observation and replicate."""

    counts: Floats
    coefficients: Floats  # [replicate, (population but the first, whitened coefficient)]
    log_likelihood: Floats
    information: Floats  # [replicate, coefficient, coefficient]

    def weights(self, design: Floats) -> Floats:
        """The estimated distribution of every population in every replicate, indexed as the counts."""
        b = np.moveaxis(self.coefficients.reshape(len(self.coefficients), -1, design.shape[1]), 0, 2)
        mass = np.empty_like(self.counts)
        for part in _parts(*mass.shape):
            _, mass[1:, part] = _posterior(design[part] @ b)
            mass[0, part] = 1 - mass[1:, part].sum(0)
            mass[:, part] *= self.counts[:, part].sum(0)
        return np.asarray(mass / self.counts.sum(1, keepdims=True))


def refit(design: Floats, counts: Floats, start: Floats, free: Floats | None = None) -> Refits:
    """Maximise the dual likelihood of every replicate by Newton's method, from a common start.

    The columns of ``free`` span the directions in which the coefficients may move; all directions by default.
    Replicates without a finite optimum are left out.
    """
    size, k, replicates = start.size, design.shape[1], counts.shape[2]
    free = np.eye(size) if free is None else free
    fits = np.empty((replicates, size)), np.empty(replicates), np.empty((replicates, size, size))
    fitted = np.zeros(replicates, dtype=bool)
    left, problem = np.arange(replicates), _Replicates(design, counts)  # the replicates that have not settled
    b = start.reshape(-1, k)[:, :, None]  # of all replicates
    accepted, best = b, np.full(replicates, -np.inf)
    for _ in range(MOST_STEPS):
        value, gradient, matrix = problem.at(b)
        worse = value < best - 1e-9 * (1 + np.abs(best))
        reduced = free.T @ matrix @ free + 1e-12 * len(design) * np.eye(free.shape[1])
        step = np.linalg.solve(reduced, (gradient @ free)[:, :, None])[:, :, 0] @ free.T
        done = ~worse & (np.abs(step).max(1) < SETTLED)
        accepted = np.where(worse, accepted, b)
        best = np.where(worse, best, value)
        # A step that lowered the likelihood is halved.
        b = np.where(worse, (b + accepted) / 2, b + step.T.reshape(*b.shape[:2], -1))
        gain = (gradient * step).sum(1) / 2  # of the step
        for kept, found in zip(fits, (np.moveaxis(b, 2, 0).reshape(len(done), -1), best + gain, matrix), strict=True):
            kept[left[done]] = found[done]
        fitted[left[done]] = True
        if fitted.all():
            break
        if done.any():
            left, problem = left[~done], problem.only(~done)
            b, accepted, best = b[:, :, ~done], accepted[:, :, ~done], best[~done]
    return Refits(counts[:, :, fitted], *(found[fitted] for found in fits))


def permutations(fit: DensityRatioFit, size: int, seed: int) -> Iterator[Floats]:
    """Replicates in which the populations are drawn from the pooled sample without replacement."""
    rng = np.random.default_rng(seed)
    for count in _chunks(fit, size):
        owner = rng.permuted(np.repeat(fit.owner[:, None], count, axis=1), axis=0)
        yield (owner == np.arange(len(fit.names))[:, None, None]).astype(np.float64)


def draws(fit: DensityRatioFit, weights: Floats, size: int, seed: int) -> Iterator[Floats]:
    """Replicates of the fixed sizes, drawn from a distribution per population (the columns of ``weights``)."""
    rng = np.random.default_rng(seed)
    shares = weights / weights.sum(0)
    for count in _chunks(fit, size):
        yield np.stack(
            [rng.multinomial(n, shares[:, i], size=count).T.astype(np.float64) for i, n in enumerate(fit.counts)]
        )


def own_shares(fit: DensityRatioFit) -> Floats:
    """The empirical distribution of every population."""
    return np.asarray((fit.owner[:, None] == np.arange(len(fit.names))) / fit.counts)


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """An estimate in every bootstrap sample (first axis). ``smallest`` is the size of the smallest sample."""

    values: Floats
    smallest: int

    @property
    def error(self) -> Floats:
        """The standard deviation over the bootstrap samples."""
        return np.asarray(self.values.std(0, ddof=1))

    def interval(self, level: float = 0.95, sizes: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """The percentile interval, expanded for small samples as t intervals are (Hesterberg, 2015).

        ``sizes`` are the sizes of the samples that the rows of the estimate are of; by default, all rows are expanded
        for the smallest sample.
        """
        check_confidence(level)
        if sizes is not None:
            rows = [Bootstrap(self.values[:, i], int(n)).interval(level) for i, n in enumerate(np.asarray(sizes))]
            return np.array([low for low, _ in rows]), np.array([high for _, high in rows])
        reach = np.sqrt(self.smallest / (self.smallest - 1)) * t.ppf(0.5 + level / 2, self.smallest - 1)
        # A new estimate lies below the k-th smallest of B with probability k / (B + 1).
        low, high = np.quantile(self.values, norm.cdf([-reach, reach]), axis=0, method="weibull")
        return np.asarray(low), np.asarray(high)


def bootstrap(
    fit: DensityRatioFit, estimate: Callable[[Floats], ArrayLike], replicates: int = 999, seed: int = 0
) -> Bootstrap:
    """Draw every population again from its own sample, refit, and estimate.

    ``estimate`` gets the weights of the pooled observations (rows) in every population (columns), as in
    ``fit.weights``, and returns a number or an array.
    """
    require_no_ridge(fit, "the bootstrap")
    values = []
    for counts in draws(fit, own_shares(fit), check_replicates(replicates), seed):
        weights = refit(fit.design, counts, start_of(fit)).weights(fit.design)
        values += [np.asarray(estimate(weights[:, :, r].T), dtype=np.float64) for r in range(weights.shape[2])]
    require_enough(len(values), replicates)
    return Bootstrap(np.array(values), int(fit.counts.min()))


def as_refits(fit: DensityRatioFit) -> Refits:
    """The fit itself, as that of a single replicate: the data."""
    counts = (fit.owner == np.arange(len(fit.names))[:, None])[:, :, None].astype(np.float64)
    return Refits(counts, start_of(fit)[None], np.array([fit.log_likelihood]), fit.information[None])


def start_of(fit: DensityRatioFit) -> Floats:
    """The fitted coefficients, from which replicates start."""
    return np.asarray(fit.optimum.coefficients[1:].ravel())


def require_no_ridge(fit: DensityRatioFit, what: str) -> None:
    """Refuse a penalised fit."""
    if fit.model.ridge > 0:
        raise FeddrmError(f"{what} compares unpenalised fits: fit with ridge=0")


def require_enough(kept: int, replicates: int) -> None:
    """Refuse if too many replicates had no finite fit."""
    if kept < (1 - MOST_LOST) * replicates:
        raise FeddrmError(
            f"in {replicates - kept} of {replicates} bootstrap samples the basis separates populations: "
            f"give more observations, a basis with fewer functions, or a ridge above 0"
        )


def check_replicates(replicates: int) -> int:
    """Refuse a number of replicates from which nothing can be learned."""
    if replicates < 20:
        raise SettingError(f"{replicates} bootstrap samples are too few: give at least 20")
    return replicates


def _chunks(fit: DensityRatioFit, size: int) -> Iterator[int]:
    most = max(1, MOST_CELLS // len(fit.owner))
    for start in range(0, size, most):
        yield min(most, size - start)


def _posterior(eta: Floats) -> tuple[Floats, Floats]:
    """Of logits [population but the first, observation, replicate]: the summed exponentials' log, and posteriors."""
    top = eta.max(initial=0.0)
    if top > LARGEST:
        top = np.maximum(eta.max(0), 0.0)
        p = np.exp(eta - top)
        total = np.exp(-top) + p.sum(0)
        return top + np.log(total), p / total
    p = np.exp(eta)
    total = 1 + p.sum(0)
    p *= 1 / total
    return np.log(total), p


def _parts(populations: int, observations: int, replicates: int) -> Iterator[slice]:
    """The observations in parts that stay in the cache."""
    size = max(1, CACHED_CELLS // (populations * replicates))
    for start in range(0, observations, size):
        yield slice(start, start + size)


class _Replicates:
    """The dual likelihoods of replicates, with their first two derivatives."""

    def __init__(self, design: Floats, counts: Floats) -> None:
        self.design, self.total = design, counts.sum(0)
        self.own = design.T @ counts[1:]  # [population, coefficient, replicate]
        self.pairs = np.triu_indices(design.shape[1])
        self.products = np.ascontiguousarray((design[:, self.pairs[0]] * design[:, self.pairs[1]]).T)

    def only(self, chosen: NDArray[np.bool_]) -> _Replicates:
        """The chosen ones of the replicates."""
        part = copy(self)
        part.total, part.own = self.total[:, chosen], self.own[:, :, chosen]
        return part

    def at(self, b: Floats) -> tuple[Floats, Floats, Floats]:
        """Value, gradient and minus the second derivative of every replicate.

        ``b`` is indexed by population, coefficient and replicate. If all replicates have the same, its last axis may
        be one: the sums are then linear in the counts, and the posteriors are computed once.
        """
        m, k, count = b.shape[0], b.shape[1], self.total.shape[1]
        value = (self.own * b).sum((0, 1))
        first = np.zeros((m, len(self.products), count))  # sums of products by the posteriors
        second = np.zeros((m, m, len(self.products), count))  # and by the products of two of them
        for part in _parts(m + 1, *self.total.shape):
            log_sum, p = _posterior(self.design[part] @ b)
            total, products = self.total[part], self.products[:, part]
            value -= (total * log_sum).sum(0)
            if b.shape[2] == 1:
                tables = products * p[:, None, :, 0]
                first += tables @ total
                for a in range(m):
                    second[a, a:] += (tables[a] * p[a:, None, :, 0]) @ total
            else:
                mass = total * p
                first += products @ mass
                for a in range(m):
                    second[a, a:] += products @ (mass[a] * p[a:])
        # The first products are those with the column of ones.
        gradient = self.own - first[:, :k]
        return value, gradient.reshape(m * k, count).T, self._matrix(first, second)

    def _matrix(self, first: Floats, second: Floats) -> Floats:
        m, k, count = len(first), self.design.shape[1], first.shape[2]
        out = np.empty((count, m, k, m, k))
        rows, columns = self.pairs
        for a in range(m):
            for other in range(a, m):
                block = ((a == other) * first[a] - second[a, other]).T
                for one, two in ((a, other), (other, a)):
                    out[:, one, rows, two, columns] = block
                    out[:, one, columns, two, rows] = block
        return out.reshape(count, m * k, m * k)
