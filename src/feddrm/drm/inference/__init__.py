"""Inference from a fit: estimates with errors, hypothesis tests, bootstrap, goodness of fit."""

from feddrm.drm.inference.estimates import (
    Estimate,
    coefficient_covariance,
    density,
    density_estimate,
    distribution,
    dominance,
    expectation,
    mean,
    quantile,
    quantile_interval,
    tilts,
)
from feddrm.drm.inference.goodness_of_fit import GoodnessOfFit, goodness_of_fit
from feddrm.drm.inference.hypothesis_tests import (
    HypothesisTest,
    Testing,
    equality,
    homogeneity,
    linear_hypothesis,
    pairwise,
    without_terms,
)
from feddrm.drm.inference.mean_differences import mean_differences, welch_differences
from feddrm.drm.inference.quantile_tests import equal_quantiles, quantile_difference_interval, quantile_differences
from feddrm.drm.inference.resampling import Bootstrap, bootstrap

__all__ = [
    "Bootstrap",
    "Estimate",
    "GoodnessOfFit",
    "HypothesisTest",
    "Testing",
    "bootstrap",
    "coefficient_covariance",
    "density",
    "density_estimate",
    "distribution",
    "dominance",
    "equal_quantiles",
    "equality",
    "expectation",
    "goodness_of_fit",
    "homogeneity",
    "linear_hypothesis",
    "mean",
    "mean_differences",
    "pairwise",
    "quantile",
    "quantile_difference_interval",
    "quantile_differences",
    "quantile_interval",
    "tilts",
    "welch_differences",
    "without_terms",
]
