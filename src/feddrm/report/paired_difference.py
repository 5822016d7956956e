"""Paired differences: one group's accuracy less another's on the same seeds and data, with a t interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95
NO_SPREAD = 1e-12  # equal differences, up to rounding: accuracies of small test sets are coarse


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference over seeds, its standard error and its interval. One seed alone allows no claim."""

    seeds: int
    mean: float
    error: float | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, differences: Sequence[float]) -> PairedDifference:
        """From one difference per seed; they are taken as normal."""
        n, mean = len(differences), fmean(differences)
        spread = stdev(differences) if n > 1 else 0.0
        if spread < NO_SPREAD:
            return cls(n, mean)
        from scipy.special import stdtrit

        error = spread / math.sqrt(n)
        half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
        return cls(n, mean, error, (mean - half, mean + half))

    @property
    def positive(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.interval is not None and self.interval[0] > 0

    def __str__(self) -> str:
        """In percentage points, as tables show it."""
        text = f"{100 * self.mean:+.2f}"
        return text if self.interval is None else f"{text} [{', '.join(f'{100 * end:+.2f}' for end in self.interval)}]"
