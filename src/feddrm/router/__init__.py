"""The exact router: which client should answer a query, from features of every depth, fitted federatedly.

``fit`` solves, ``features`` says on what, ``choose`` by which strength, ``heads`` and ``stack`` answer
classes on the same features, ``policy`` turns scores into decisions, ``change`` lets clients come and
go, ``artifact`` makes files of it. docs/router.md says what each piece makes public.
"""

from feddrm.router.artifact import load_heads, load_router, read_manifest, save_router
from feddrm.router.evaluate import evaluate_router
from feddrm.router.features.base import Feature, Recipe
from feddrm.router.fit.design_matrix import RouterSettings
from feddrm.router.fit.fit_router import FittedRouter, fit_router
from feddrm.router.fit.selection import Holdout
from feddrm.router.membership import join, leave
from feddrm.router.router import Calibration, Decision, Router

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
