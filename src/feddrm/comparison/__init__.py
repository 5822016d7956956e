"""Populations compared beyond one process and one figure: the fit over clients, and the page of an analysis."""

from feddrm.comparison.analysis_page import analysis_page
from feddrm.comparison.federated_fit import FederatedFit, IncomparableError, fit_federation, fit_populations

__all__ = ["FederatedFit", "IncomparableError", "analysis_page", "fit_federation", "fit_populations"]
