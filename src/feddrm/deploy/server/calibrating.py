"""A router's temperature and thresholds from sums and counts of held-out samples, by letters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from feddrm.deploy.server.remote_cohort import Solver, table_tensors
from feddrm.deploy.site.site_fit import BINS
from feddrm.router import Calibration
from feddrm.router.fit.design_matrix import Table
from feddrm.router.fit.fit_router import MISSES, STRANGER
from feddrm.router.policy import RULES, conformal_threshold, solve_temperature
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import add

TEMPERATURE_STEPS, TEMPERATURE_TOLERANCE = 20, 1e-6


def calibrate(solver: Solver, table: Table, folds: Sequence[Tensor], log_prior: Tensor) -> Calibration:
    """Temperature by Newton on sums; percentiles and thresholds from counts in a thousand bins of weight."""
    told = {"table": table.recipe.name, "folds": len(folds)}
    tensors = {**table_tensors(table), **{f"point/{fold}": point for fold, point in enumerate(folds)}}

    def slopes(scale: float) -> ClientSums:
        return solver.total({"step": "slope", "scale": scale, **told}, tensors)

    temperature = solve_temperature(slopes, TEMPERATURE_STEPS, TEMPERATURE_TOLERANCE)
    spread = {"step": "spread", "scale": 1 / temperature, **told}
    answers = solver.everybody(spread, {**tensors, "log_prior": log_prior})
    strange = max(float(answer["strange"]) for answer in answers)
    counts = add([{key: value for key, value in answer.items() if key != "strange"} for answer in answers])
    confidence: dict[str, tuple[float, ...]] = {}
    conformal: dict[str, float] = {}
    for rule in RULES:
        # The lower edge of a bin: thresholds that promise coverage may only err towards larger sets.
        top, own = (np.repeat(np.arange(BINS) / BINS, counts[f"{rule}/{kind}"].numpy()) for kind in ("top", "own"))
        confidence[rule] = tuple(float(value) for value in np.quantile(top, np.linspace(0, 1, 101)))
        weights = torch.from_numpy(np.maximum(own, math.ulp(0.0))).log()[:, None]
        origin = torch.zeros(len(weights), dtype=torch.int64)
        conformal |= {f"{rule}_{miss}": conformal_threshold(weights, origin, miss) for miss in MISSES}
    return Calibration(temperature, confidence, conformal, STRANGER * strange)
