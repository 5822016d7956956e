"""Density ratio models and empirical likelihood: the statistics under the method, with no federation in sight."""

from feddrm.drm.likelihood import profile_log_likelihood, reference_weights, solve_multipliers
from feddrm.drm.model import DensityRatioFit, DensityRatioModel

__all__ = [
    "DensityRatioFit",
    "DensityRatioModel",
    "profile_log_likelihood",
    "reference_weights",
    "solve_multipliers",
]
