"""The exact router: which client should answer a query, from features of every depth, fitted federatedly.

``fit`` solves, ``features`` says on what, ``choose`` by which strength, ``heads`` and ``stack`` answer
classes on the same features, ``policy`` turns scores into decisions, ``change`` lets clients come and
go, ``artifact`` makes files of it. docs/router.md says what each piece makes public.
"""

from feddrm.router.artifact import load_heads, load_router, read_manifest, save_router
from feddrm.router.change import join, leave
from feddrm.router.choose import Holdout
from feddrm.router.evaluating import evaluate_router
from feddrm.router.features import Feature, Recipe
from feddrm.router.fitting import FittedRouter, fit_router
from feddrm.router.router import Calibration, Decision, Router
from feddrm.router.tables import RouterSettings

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
