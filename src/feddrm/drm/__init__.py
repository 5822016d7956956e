"""Density ratio models and empirical likelihood: the statistics behind the method, usable without a federation."""

from feddrm.drm.analysis import Analysis, AnalysisSettings, BasisWarning, analyse
from feddrm.drm.basis_choice import BasisChoice, choose_basis
from feddrm.drm.density_ratio import DensityRatioFit, DensityRatioModel
from feddrm.drm.likelihood import profile_log_likelihood, reference_weights, solve_multipliers
from feddrm.drm.zero_excess import TwoPartFit

__all__ = [
    "Analysis",
    "AnalysisSettings",
    "BasisChoice",
    "BasisWarning",
    "DensityRatioFit",
    "DensityRatioModel",
    "TwoPartFit",
    "analyse",
    "choose_basis",
    "profile_log_likelihood",
    "reference_weights",
    "solve_multipliers",
]
