"""Sums of features that a client sends once, and the heads that follow from them in closed form."""

from feddrm.moments.heads import (
    SQUARED_RIDGES,
    Fold,
    Heads,
    RidgeChoice,
    choose_ridges,
    discriminant_head,
    own_corrections,
    prior_corrections,
    ridge_correction,
    ridge_head,
    ridge_heads,
    squared_loss,
)
from feddrm.moments.moments import Moments, MomentTarget

__all__ = [
    "SQUARED_RIDGES",
    "Fold",
    "Heads",
    "MomentTarget",
    "Moments",
    "RidgeChoice",
    "choose_ridges",
    "discriminant_head",
    "own_corrections",
    "prior_corrections",
    "ridge_correction",
    "ridge_head",
    "ridge_heads",
    "squared_loss",
]
