"""Times the whole analysis that ``feddrm drm fit`` does, and its parts, on made normal samples.

    OMP_NUM_THREADS=1 python -m benchmarks.drm_analysis [--repeat 3] [--json results/bench/drm_analysis.json]

CPU seconds, the least of several repetitions. To compare two versions, run it with the src/ of the other on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.result import finish
from feddrm.drm.analysis import QUARTILES, analyse
from feddrm.drm.basis import Floats
from feddrm.drm.density_ratio import DensityRatioModel
from feddrm.drm.inference.goodness_of_fit import goodness_of_fit
from feddrm.drm.inference.quantile_tests import equal_quantiles, quantile_difference_interval

CASES = {  # populations, observations of each, distance between the means of neighbours
    "3 populations, far apart, 9,000 observations": (3, 3_000, 1.0),
    "4 populations, 50,000 observations": (4, 12_500, 0.1),
    "12 populations, 50,000 observations": (12, 4_167, 0.1),
}


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def parts(samples: list[Floats]) -> dict[str, float]:
    """CPU seconds of one analysis, and of what takes the longest in it when done alone."""
    fit = DensityRatioModel("normal").fit(samples)
    return {
        "goodness of fit": cpu_seconds(lambda: goodness_of_fit(fit)),
        "tests of quantiles": cpu_seconds(lambda: [equal_quantiles(fit, level) for level in QUARTILES]),
        "differences of quantiles": cpu_seconds(lambda: quantile_difference_interval(fit, QUARTILES)),
        "whole analysis": cpu_seconds(lambda: analyse(samples, "normal").facts()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the observations")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = {}
    for name, (populations, size, distance) in CASES.items():
        rng = np.random.default_rng(0)
        samples = [rng.normal(distance * i, 1.0, int(size * arguments.scale)) for i in range(populations)]
        with warnings.catch_warnings(action="ignore"):
            timed = [parts(samples) for _ in range(arguments.repeat)]
        figures[name] = {part: round(min(t[part] for t in timed), 3) for part in timed[0]}
    finish({"cpu_seconds": figures}, arguments.json)


if __name__ == "__main__":
    main()
