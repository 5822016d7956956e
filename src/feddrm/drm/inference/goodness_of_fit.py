"""Goodness of fit of a basis: fitted against empirical distribution functions, judged by bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioFit
from feddrm.drm.inference.resampling import (
    check_replicates,
    draws,
    own_shares,
    refit,
    require_enough,
    require_no_ridge,
    start_of,
)

DOUBTFUL = 0.01  # a smaller p-value is worth a warning; of right bases, one in a hundred has one


@dataclass(frozen=True)
class GoodnessOfFit:
    """The summed distance between fitted and empirical distribution functions, and its p-value.

    The distance of a population is that of Anderson and Darling: its size times the mean of
    ``(fitted F - empirical F)^2 / (H (1 - H))`` over the pooled sample, whose distribution function is H. It finds a
    wrong basis more often than the largest difference (Kolmogorov and Smirnov) does.
    """

    statistic: float
    p_value: float
    population: str  # with the largest distance
    replicates: int

    @property
    def doubtful(self) -> bool:
        """Whether the basis fits badly."""
        return self.p_value < DOUBTFUL

    def warning(self, basis: object) -> str:
        """What to say of a basis that fits badly."""
        return (
            f"basis {basis} fits population '{self.population}' badly (goodness of fit: p = {self.p_value:.2g}): its "
            f"intervals and p-values may be wrong; choose another basis, or 'auto'"
        )


def goodness_of_fit(fit: DensityRatioFit, replicates: int = 199, seed: int = 0) -> GoodnessOfFit:
    """Compare the distance with that in samples drawn from the fitted model, as Qin and Zhang (1997) do."""
    require_no_ridge(fit, "goodness of fit")
    check_replicates(replicates)
    steps = [_ends(column) for column in fit.values.T]
    own = own_shares(fit).T
    observed = _distances((fit.weights.T - own)[:, :, None], fit.counts, steps)[:, 0]
    drawn = []
    for counts in draws(fit, fit.weights, replicates, seed):
        refits = refit(fit.design, counts, start_of(fit))
        gap = refits.weights(fit.design) - refits.counts / fit.counts[:, None, None]
        drawn.append(_distances(gap, fit.counts, steps).sum(0))
    values = np.concatenate(drawn)
    require_enough(len(values), replicates)
    total = float(observed.sum())
    p_value = (1 + int((values >= total - 1e-12).sum())) / (1 + len(values))
    return GoodnessOfFit(total, p_value, fit.names[int(observed.argmax())], len(values))


def _ends(column: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """The order of the observations, the last place of each run of equal ones in it, and the weight of the run."""
    order, size = np.argsort(column, kind="stable"), len(column)
    ends = np.append(np.flatnonzero(np.diff(column[order]) > 0), size - 1)
    height = (ends + 0.5) / size
    return order, ends, np.diff(ends, prepend=-1) / size / (height * (1 - height))


def _distances(
    gap: Floats, counts: NDArray[np.intp], steps: list[tuple[NDArray[np.intp], NDArray[np.intp], Floats]]
) -> Floats:
    """The distance by population and replicate, summed over the columns."""
    columns = [weight @ np.cumsum(gap[:, order], axis=1)[:, ends] ** 2 for order, ends, weight in steps]
    return np.asarray(counts[:, None] * sum(columns))
