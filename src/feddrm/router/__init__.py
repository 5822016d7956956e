"""The exact router: which client should answer a query, from features of every depth, fitted federatedly.

``fit`` fits a router and its class heads to a cohort of clients, ``solver`` has the exact solver, ``features`` what a
router looks at. ``policy`` turns scores into decisions, ``membership`` lets clients join and leave, ``artifact`` writes
a router to files. docs/router.md says what each part makes public.
"""

from feddrm.router.artifact import load_heads, load_router, read_manifest, save_router
from feddrm.router.evaluate import evaluate_router
from feddrm.router.features.base import Feature, Recipe
from feddrm.router.fit.fit_router import FittedRouter, fit_router
from feddrm.router.membership import join, leave
from feddrm.router.router import Calibration, Decision, Router
from feddrm.router.settings import Holdout, RouterSettings

__all__ = [
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
    "join",
    "leave",
    "load_heads",
    "load_router",
    "read_manifest",
    "save_router",
]
