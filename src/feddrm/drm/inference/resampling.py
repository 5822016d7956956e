"""Many fits at once: bootstrap and permutation replicates as counts of the same pooled observations.

A replicate says how often every population draws every pooled observation. All replicates then share one design
matrix, and Newton's steps of all of them are a few matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, t

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.errors import FeddrmError, SettingError

MOST_CELLS = 400_000  # of one population's table of observations by replicates: it stays in the cache
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
        _, posterior = _posterior(design @ b)
        first = 1 - posterior.sum(0)
        total = self.counts.sum(0)
        mass = np.concatenate([(first * total)[None], posterior * total])
        return np.asarray(mass / self.counts.sum(1, keepdims=True))


def refit(design: Floats, counts: Floats, start: Floats, free: Floats | None = None) -> Refits:
    """Maximise the dual likelihood of every replicate by Newton's method, from a common start.

    The columns of ``free`` span the directions in which the coefficients may move; all directions by default.
    Replicates without a finite optimum are left out.
    """
    size, k = start.size, design.shape[1]
    free = np.eye(size) if free is None else free
    products = _products(design)
    own = design.T @ counts[1:]  # [population, coefficient, replicate]
    total = counts.sum(0)
    b = np.repeat(start.reshape(-1, k)[:, :, None], counts.shape[2], axis=2)
    accepted, best = b, np.full(counts.shape[2], -np.inf)
    done = np.zeros(counts.shape[2], dtype=bool)
    for _ in range(MOST_STEPS):
        log_sum, posterior = _posterior(design @ b)
        value = (own * b).sum((0, 1)) - (total * log_sum).sum(0)
        worse = value < best - 1e-9 * (1 + np.abs(best))
        gradient = (own - design.T @ (total * posterior)).reshape(size, -1).T
        matrix = _informations(products, posterior, total, k)
        reduced = free.T @ matrix @ free + 1e-12 * len(design) * np.eye(free.shape[1])
        step = np.linalg.solve(reduced, (gradient @ free)[:, :, None])[:, :, 0] @ free.T
        done = ~worse & (np.abs(step).max(1) < SETTLED)
        gain = np.where(done, (gradient * step).sum(1) / 2, 0.0)  # of the step that is taken below
        accepted = np.where(worse, accepted, b)
        best = np.where(worse, best, value)
        # A step that lowered the likelihood is halved.
        b = np.where(worse, (b + accepted) / 2, b + step.T.reshape(b.shape))
        if done.all():
            break
    final = np.moveaxis(b, 2, 0).reshape(len(done), -1)
    return Refits(counts[:, :, done], final[done], (best + gain)[done], matrix[done])


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
        if not 0 < level < 1:
            raise SettingError(f"confidence {level}: give a number between 0 and 1, such as 0.95")
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
    """Of logits [population but the first, observation, replicate]: log of the summed exponentials, and posteriors."""
    top = np.maximum(eta.max(0), 0.0)
    p = np.exp(eta - top)
    total = np.exp(-top) + p.sum(0)
    p /= total
    return top + np.log(total), p


def _products(design: Floats) -> tuple[Floats, tuple[NDArray[np.intp], NDArray[np.intp]]]:
    pairs = np.triu_indices(design.shape[1])
    return np.ascontiguousarray((design[:, pairs[0]] * design[:, pairs[1]]).T), pairs


def _informations(
    products: tuple[Floats, tuple[NDArray[np.intp], NDArray[np.intp]]], posterior: Floats, total: Floats, k: int
) -> Floats:
    """Minus the second derivative of every replicate's likelihood."""
    m, _, count = posterior.shape
    out = np.empty((count, m, k, m, k))
    table, (rows, columns) = products
    for a in range(m):
        mass = total * posterior[a]
        for other in range(a, m):
            block = (table @ (mass * ((a == other) - posterior[other]))).T
            for one, two in ((a, other), (other, a)):
                out[:, one, rows, two, columns] = block
                out[:, one, columns, two, rows] = block
    return out.reshape(count, m * k, m * k)
