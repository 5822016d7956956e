"""Drift: whether recent queries come from the training mixture, by the density ratio test on the router's scores.

The test looks at the log-odds of the clients, each less their mean, and at the logarithm of the strangeness. The
reference has their moments on test samples: of samples that the network has seen its scores are too sure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from feddrm.moments.score_test import Floats, SampleMoments, ScoreTest, score_test

WINDOW = 100  # queries of one test
FALSE_ALARM, HORIZON = 0.05, 2000  # at most this probability of a false alarm in so many queries
MOST_CLIENTS = WINDOW  # the mean of a window says nothing about more directions than it has queries
LEVEL = FALSE_ALARM * WINDOW / HORIZON  # of one test (Bonferroni)
LEAST_STRANGENESS = 1e-12
LEAST_REFERENCE = 5  # times the number of statistics: fewer samples do not give a covariance


def drift_statistics(log_density: NDArray[np.floating], strangeness: NDArray[np.floating]) -> Floats:
    """What the test looks at [N, m], from log densities [N, m], up to a constant per sample, and strangeness [N]."""
    centred = (log_density - log_density.mean(1, keepdims=True))[:, 1:]  # they sum to zero, so one is left out
    columns = [centred, np.log(np.maximum(strangeness, LEAST_STRANGENESS))[:, None]]
    return np.concatenate(columns, axis=1, dtype=np.float64)


def drift_reference(logits: Tensor, log_prior: Tensor, strangeness: Tensor) -> SampleMoments | None:
    """The moments of samples; None where there are too few samples or too many clients."""
    if logits.shape[1] > MOST_CLIENTS:
        return None
    densities = logits.double().log_softmax(1) - log_prior.to(logits).double()
    rows = drift_statistics(densities.cpu().numpy(), strangeness.double().cpu().numpy())
    return SampleMoments.of(rows) if len(rows) >= LEAST_REFERENCE * rows.shape[1] else None


@dataclass
class DriftMonitor:
    """Tests every ``WINDOW`` queries against the reference. A test below ``LEVEL`` is an alarm."""

    reference: SampleMoments
    queries: int = 0
    _waiting: list[Floats] = field(default_factory=list)
    _number: int = 0

    def add(self, rows: Floats) -> Iterator[ScoreTest]:
        """The tests that more queries complete, in their order. Rows that are not finite are left out."""
        rows = rows[np.isfinite(rows).all(1)]
        self._waiting.append(rows)
        self._number += len(rows)
        if self._number < WINDOW:
            return
        together = np.concatenate(self._waiting)
        whole = len(together) - len(together) % WINDOW
        self._waiting, self._number = [together[whole:]], len(together) - whole
        for start in range(0, whole, WINDOW):
            self.queries += WINDOW
            yield score_test(self.reference, SampleMoments.of(together[start : start + WINDOW]))
