"""Empirical likelihood under a density ratio model, as in the paper: weights, multipliers and profile.

The functions take ``log_tilts``, a table of ``log dP_l/dP_0`` at every pooled observation (rows) for every
population (columns), and ``owner``, the population of each observation. The tilts need not be at a maximum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats
from feddrm.errors import FeddrmError

LARGEST = 700.0  # of log tilts: its exponential is still finite


def reference_weights(log_tilts: Floats, multipliers: Floats) -> Floats:
    """The mass of the reference at every observation: ``1 / (N (1 + sum_l rho_l (e_l - 1)))``."""
    return np.asarray(1 / (len(log_tilts) * (1 + np.expm1(log_tilts) @ multipliers)))


def solve_multipliers(log_tilts: Floats) -> Floats:
    """The Lagrange multipliers of ``sum p e_l = 1`` by Owen's convex dual, for any tilts.

    The constraint of the reference population itself, with ``e_l = 1`` everywhere, is always met, so its multiplier
    is not determined. It is set to one minus the sum of the others.
    """
    if (largest := float(np.max(log_tilts))) > LARGEST:
        raise FeddrmError(
            f"a log tilt of {largest:.4g} is above {LARGEST:g}, and its exponential overflows: leave out observations "
            f"far from the others; at the optimum, DensityRatioFit.profile_log_likelihood needs no multipliers"
        )
    excess = np.expm1(log_tilts)
    free = np.abs(excess).max(0) > 1e-9
    g = excess[:, free]
    n = len(g)
    rho = np.full(g.shape[1], 0.5 / max(1, g.shape[1]))
    for _ in range(500):
        value, first, second = _pseudo_log(1 + g @ rho, 1 / n)
        score = g.T @ first
        step = np.linalg.lstsq((g * -second[:, None]).T @ g, score, rcond=None)[0]
        size = 1.0
        least = value.sum() - 1e-12 * n  # a smaller decrease is rounding error
        while _pseudo_log(1 + g @ (rho + size * step), 1 / n)[0].sum() < least and size > 1e-12:
            size /= 2
        rho = rho + size * step
        if score @ step < 1e-22:  # twice the gain of this step: converged
            break
    inside = 1 + g @ rho
    p = 1 / (n * inside)
    if (p < 0).any() or abs(p.sum() - 1) > 1e-6 or np.abs(p @ g).max(initial=0.0) > 1e-6:
        raise FeddrmError("no reference on these observations meets the constraints: the tilts are too far from them")
    full = np.zeros(len(free))
    full[free] = rho
    if (~free).any():
        full[~free] = (1 - rho.sum()) / (~free).sum()
    return full


def _pseudo_log(x: Floats, least: float) -> tuple[Floats, Floats, Floats]:
    """The logarithm and two derivatives; below ``least``, which no weight can reach, a parabola (Owen)."""
    low = x < least
    safe = np.where(low, least, x)
    ratio = np.where(low, x / least, 1.0)
    value = np.log(safe) - np.where(low, 1.5 - 2 * ratio + ratio**2 / 2, 0.0)
    first = np.where(low, (2 - ratio) / least, 1 / safe)
    return value, first, -((1 / safe) ** 2)


def profile_log_likelihood(log_tilts: Floats, owner: NDArray[np.intp]) -> float:
    """The largest empirical log likelihood for these tilts, over all weights."""
    p = reference_weights(log_tilts, solve_multipliers(log_tilts))
    return float(np.take_along_axis(log_tilts, owner[:, None], 1).sum() + np.log(p).sum())
