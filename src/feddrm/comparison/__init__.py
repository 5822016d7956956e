"""Populations compared beyond one process and one figure: the fit over sites, and the page of an analysis."""

from feddrm.comparison.analysis_page import analysis_page
from feddrm.comparison.federated_fit import FederatedFit, PopulationSite, fit_sites

__all__ = ["FederatedFit", "PopulationSite", "analysis_page", "fit_sites"]
