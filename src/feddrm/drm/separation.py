"""Decides by a linear programme whether a multinomial logistic fit has a finite optimum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from feddrm.drm.basis import Floats

MOST_CELLS = 20_000_000
# In pooled standard deviations along a direction of size one. The solver's own tolerance is 1e-7.
MARGIN, ROUNDING = 1e-4, 1e-6


def separated_pairs(design: Floats, owner: NDArray[np.intp], followed: Floats) -> list[tuple[int, int]]:
    """Pairs of populations that some direction separates; none if the optimum is finite (Albert and Anderson, 1984).

    The likelihood grows without end along a direction in which no observation's own population loses against
    another and at least one wins. A linear programme finds such a direction. If the data are too large for one,
    only the direction ``followed`` so far is checked.
    """
    populations, k = followed.shape
    large = len(design) * (populations - 1) * populations * k > MOST_CELLS
    direction = followed if large else _widest_margins(design, owner, populations)
    scores = design @ (direction / np.abs(direction).max(initial=1e-300)).T
    margins = np.take_along_axis(scores, owner[:, None], 1) - scores
    if margins.min() < -ROUNDING:
        return []
    pairs = []
    for i in range(populations):
        for other in range(i + 1, populations):
            if max(margins[owner == i, other].max(), margins[owner == other, i].max()) > MARGIN:
                pairs.append((i, other))
    return pairs


def _widest_margins(design: Floats, owner: NDArray[np.intp], populations: int) -> Floats:
    """The direction in a box with the largest sum of margins, none negative; zero if there is no other."""
    k = design.shape[1]
    rows = []
    for i in range(populations):
        own = design[owner == i]
        for other in range(populations):
            if other != i:
                block = np.zeros((len(own), populations, k))
                block[:, i] = own
                block[:, other] = -own
                rows.append(block.reshape(len(own), -1))
    margins = np.vstack(rows)
    result = linprog(-margins.mean(0), A_ub=-margins, b_ub=np.zeros(len(margins)), bounds=(-1, 1), method="highs")
    return result.x.reshape(populations, k) if result.status == 0 else np.zeros((populations, k))
