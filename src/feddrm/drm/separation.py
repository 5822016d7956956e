"""Whether a multinomial logistic fit has a finite optimum, decided by a linear programme."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from feddrm.drm.basis import Floats

MOST_CELLS = 20_000_000
MARGIN = 1e-4  # in pooled standard deviations: well above the solver's own tolerance of 1e-7


def separated_pairs(design: Floats, owner: NDArray[np.intp], populations: int) -> list[tuple[int, int]]:
    """Pairs of populations that some direction divides; none if the optimum is finite (Albert and Anderson, 1984).

    A direction along which no observation's own population ever loses, and one wins, can be followed for ever.
    It is found by maximising the sum of all margins within a box. Data too large for that are not judged.
    """
    k = design.shape[1]
    if len(design) * (populations - 1) * populations * k > MOST_CELLS:
        return []
    rows = []
    for i in range(populations):
        mine = design[owner == i]
        for other in range(populations):
            if other != i:
                block = np.zeros((len(mine), populations, k))
                block[:, i] = mine
                block[:, other] = -mine
                rows.append(block.reshape(len(mine), -1))
    margins = np.vstack(rows)
    found = linprog(-margins.mean(0), A_ub=-margins, b_ub=np.zeros(len(margins)), bounds=(-1, 1), method="highs")
    if found.status != 0:
        return []
    direction = found.x.reshape(populations, k)
    scores = design @ direction.T
    pairs = []
    for i in range(populations):
        for other in range(i + 1, populations):
            gap = scores[:, i] - scores[:, other]
            if max(gap[owner == i].max(), -gap[owner == other].min()) > MARGIN:
                pairs.append((i, other))
    return pairs
