"""Density ratio models and empirical likelihood: the statistics behind the method, usable without a federation."""

from feddrm.drm.density_ratio import DensityRatioFit, DensityRatioModel
from feddrm.drm.likelihood import profile_log_likelihood, reference_weights, solve_multipliers

__all__ = [
    "DensityRatioFit",
    "DensityRatioModel",
    "profile_log_likelihood",
    "reference_weights",
    "solve_multipliers",
]
