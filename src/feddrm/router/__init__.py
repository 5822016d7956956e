"""The exact router: it chooses the client that should answer a query, and is fitted without moving samples.

``features`` computes what the router looks at, ``solver`` solves the federated fit, ``fit`` chooses features and
ridge and fits router and heads, ``policy`` turns scores into decisions, ``decisions`` says why, ``membership`` adds
and removes clients, ``artifact`` and ``export`` write files. docs/router_fit.md says what each step makes public.
"""

from feddrm.router.artifact import load_heads, load_router, read_manifest, save_router
from feddrm.router.decisions.decision import Decision
from feddrm.router.evaluate import evaluate_router
from feddrm.router.features.base import Feature, Recipe
from feddrm.router.features.basis_functions import BasisFeature
from feddrm.router.fit.fit_router import FittedRouter, fit_router
from feddrm.router.membership import join_client, leave
from feddrm.router.policy import Calibration
from feddrm.router.router import Router
from feddrm.router.settings import Holdout, RouterSettings

__all__ = [
    "BasisFeature",
    "Calibration",
    "Decision",
    "Feature",
    "FittedRouter",
    "Holdout",
    "Recipe",
    "Router",
    "RouterSettings",
    "evaluate_router",
    "fit_router",
    "join_client",
    "leave",
    "load_heads",
    "load_router",
    "read_manifest",
    "save_router",
]
