"""Calibrating a router on held-out samples: temperature, percentiles of confidence, conformal thresholds."""

from __future__ import annotations

import torch
from torch import Tensor

from feddrm.router.fit.cohort import HeldOutRouter
from feddrm.router.policy import RULES, conformal_threshold, solve_temperature
from feddrm.router.router import Calibration

MISSES = (0.01, 0.05, 0.1, 0.2)
STRANGER = 1.5  # times the strangest held-out sample: a query beyond that comes from no client of this federation


def calibrate(held_out: HeldOutRouter, log_prior: Tensor) -> Calibration:
    """The calibration of a router from the scores of its held-out samples."""
    temperature = solve_temperature(held_out.slopes)
    weights = held_out.confidence(temperature, log_prior)
    confidence: dict[str, tuple[float, ...]] = {}
    conformal: dict[str, float] = {}
    for rule in RULES:
        top, own = weights.top[rule], weights.own[rule]
        confidence[rule] = tuple(quantiles(top, torch.linspace(0, 1, 101, dtype=top.dtype)).tolist())
        first = torch.zeros(len(own), dtype=torch.int64, device=own.device)
        conformal |= {f"{rule}_{miss}": conformal_threshold(own[:, None], first, miss) for miss in MISSES}
    return Calibration(temperature, confidence, conformal, STRANGER * weights.strangest, weights.reference)


def quantiles(values: Tensor, grid: Tensor) -> Tensor:
    """As torch.quantile, which refuses more than 16 million values."""
    ordered = values.sort().values
    place = grid * (len(ordered) - 1)
    low = place.long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
