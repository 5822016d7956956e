"""Goodness of fit of a basis: fitted against empirical distribution functions, judged by bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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

DOUBTFUL = 0.05  # a smaller p-value is worth a warning


@dataclass(frozen=True)
class GoodnessOfFit:
    """The largest ``sqrt(n_k) |fitted F_k - empirical F_k|`` over populations and columns, and its p-value."""

    statistic: float
    p_value: float
    population: str  # where the distance is largest
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
    """Compare the distance with that in samples drawn from the fitted model (Qin and Zhang, 1997)."""
    require_no_ridge(fit, "goodness of fit")
    check_replicates(replicates)
    steps = [_ends(column) for column in fit.values.T]
    own = own_shares(fit).T
    observed = _distances((fit.weights.T - own)[:, :, None], fit.counts, steps)[:, 0]
    drawn = []
    for counts in draws(fit, fit.weights, replicates, seed):
        refits = refit(fit.design, counts, start_of(fit))
        gap = refits.weights(fit.design) - refits.counts / fit.counts[:, None, None]
        drawn.append(_distances(gap, fit.counts, steps).max(0))
    values = np.concatenate(drawn)
    require_enough(len(values), replicates)
    largest = float(observed.max())
    p_value = (1 + int((values >= largest - 1e-12).sum())) / (1 + len(values))
    return GoodnessOfFit(largest, p_value, fit.names[int(observed.argmax())], len(values))


def _ends(column: Floats) -> tuple[Floats, Floats]:
    """The order of the observations, and the last place of each run of equal ones in it."""
    order = np.argsort(column, kind="stable")
    return order, np.append(np.flatnonzero(np.diff(column[order]) > 0), len(column) - 1)


def _distances(gap: Floats, counts: Floats, steps: list[tuple[Floats, Floats]]) -> Floats:
    """``sqrt(n_k)`` times the largest absolute sum of the gap, by population and replicate."""
    columns = [np.abs(np.cumsum(gap[:, order], axis=1)[:, ends]).max(1) for order, ends in steps]
    return np.asarray(np.sqrt(counts)[:, None] * np.maximum.reduce(columns))
