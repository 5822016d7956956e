"""Samples of populations for tests of density ratio models, and checks of a fit."""

from __future__ import annotations

import numpy as np

from feddrm.drm import (
    DensityRatioFit,
    DensityRatioModel,
)
from feddrm.drm.basis import Floats


def three(seed: int = 0, sizes: tuple[int, ...] = (80, 50, 120)) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(mean, sd, n)
        for name, mean, sd, n in zip("abc", (0.0, 0.6, -0.3), (1.0, 1.2, 0.8), sizes, strict=True)
    }


def score(fit: DensityRatioFit, ridge: float = 0.0) -> float:
    """The largest component of the derivative, from the definition, in the basis as it was given."""
    design = np.hstack([np.ones((len(fit.features), 1)), fit.features])
    logits = design @ np.vstack([fit.gamma_ddagger, fit.xi.T])
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    pull = np.hstack([np.zeros((len(fit.names), 1)), ridge * (fit.xi - fit.xi.mean(0))])
    return float(np.abs((p - np.eye(len(fit.names))[fit.owner]).T @ design + pull).max())


def fitted(seed: int = 0) -> DensityRatioFit:
    rng = np.random.default_rng(seed)
    sizes, moves = (60, 110, 80), rng.normal(scale=0.5, size=(3, 2))
    return DensityRatioModel("identity").fit([rng.normal(size=(n, 2)) + c for n, c in zip(sizes, moves, strict=True)])


def retilted(fit: DensityRatioFit, slope: Floats) -> Floats:
    """The same populations against another reference: ``c + slope' h`` added to all log tilts, c normalising."""
    extra = fit.features @ slope
    mass = np.exp(-extra - fit.log_tilts[:, 0]) * fit.weights[:, 0]
    return np.asarray(fit.log_tilts + (extra + np.log(mass.sum()))[:, None])
