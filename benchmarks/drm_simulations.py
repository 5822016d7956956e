"""Simulates tests and intervals of density ratio models: size, coverage, and power against Wilcoxon and t.

    python -m benchmarks.drm_simulations size [--repetitions 2000] [--workers 2] [--json results/bench/drm_size.json]
    python -m benchmarks.drm_simulations coverage [--json results/bench/drm_coverage.json]
    python -m benchmarks.drm_simulations bootstrap [--json results/bench/drm_bootstrap.json]
    python -m benchmarks.drm_simulations power [--json results/bench/drm_power.json]

Three samples of n = 50 or 200 from normal, gamma or lognormal populations. The size of a test is the share of
rejections at 5 % where its hypothesis holds, the coverage of an interval the share of 95 % intervals with the truth
inside. All settings are the defaults: below 30 observations per basis function, tests are corrected. Power compares
two samples of 50: gamma(2, 1) against the same moved to the right, and against the same stretched.
``coverage`` also times one fit with intervals of three populations of 10,000 observations; ``bootstrap`` is the
coverage of bootstrap intervals of means.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gamma, lognorm, mannwhitneyu, norm, ttest_ind

from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.inference import Testing

Floats = NDArray[np.float64]
Tally = dict[str, list[Any]]
SIZES = (50, 200)
CHUNK = 100  # repetitions that one worker does at a time
LEVELS = (0.25, 0.5, 0.75)
REPLICATES = 199  # of the bootstrap
WALD = Testing("wald")
# Location and scale (normal), shape and scale (gamma), mean and deviation of the logarithm (lognormal). In ``null``
# the last two populations are equal, and the second parameter of the exponential family is the same in all.
FAMILIES: dict[str, dict[str, Any]] = {
    "normal": {
        "of": lambda p: norm(p[0], p[1]),
        "null": ((0.0, 1.0), (0.4, 1.0), (0.4, 1.0)),
        "coverage": ((0.0, 1.0), (0.4, 1.2), (-0.3, 0.9)),
        "tilt": lambda p: (p[0] / p[1] ** 2, -0.5 / p[1] ** 2),
        "absent": "x^2",
    },
    "gamma": {
        "of": lambda p: gamma(p[0], scale=p[1]),
        "null": ((2.0, 1.0), (2.0, 1.3), (2.0, 1.3)),
        "coverage": ((2.0, 1.0), (3.0, 0.8), (2.5, 1.1)),
        "tilt": lambda p: (-1 / p[1], p[0]),
        "absent": "log x",
    },
    "lognormal": {
        "of": lambda p: lognorm(p[1], scale=np.exp(p[0])),
        "null": ((0.0, 0.5), (0.2, 0.5), (0.2, 0.5)),
        "coverage": ((0.0, 0.5), (0.2, 0.6), (-0.15, 0.45)),
        "tilt": lambda p: (p[0] / p[1] ** 2, -0.5 / p[1] ** 2),
        "absent": "(log x)^2",
    },
}


def rejections(family: str, n: int, rng: np.random.Generator, add: Callable[[str, Any], None]) -> None:
    """One repetition: whether every test rejects a hypothesis that holds."""
    given = FAMILIES[family]
    populations = [given["of"](p) for p in given["null"]]
    model = DensityRatioModel(family)
    equal = model.fit([populations[0].rvs(n, random_state=rng) for _ in populations])
    fit = model.fit([p.rvs(n, random_state=rng) for p in populations])
    for name, how in (("likelihood ratio", Testing()), ("Wald", WALD)):
        tests = {
            "homogeneity": inference.homogeneity(equal, how),
            "pairwise": inference.equality(fit, [1, 2], how),
            "composite": inference.without_terms(fit, [given["absent"]], how),
            "median": inference.equal_quantiles(fit, 0.5, [1, 2], how.statistic),
            "quartile": inference.equal_quantiles(fit, 0.25, [1, 2], how.statistic),
        }
        for test, result in tests.items():
            add(f"{test}, {name}", result.p_value < 0.05)
    uncorrected = inference.homogeneity(equal, Testing(correction="none"))
    add("homogeneity, likelihood ratio, uncorrected", uncorrected.p_value < 0.05)
    add("goodness of fit", inference.goodness_of_fit(fit, replicates=99).p_value < 0.05)


def covered(family: str, n: int, rng: np.random.Generator, add: Callable[[str, Any], None]) -> None:
    """One repetition: whether every 95 % interval holds the truth."""
    given = FAMILIES[family]
    populations = [given["of"](p) for p in given["coverage"]]
    fit = DensityRatioModel(family).fit([p.rvs(n, random_state=rng) for p in populations])
    tilts = np.array([given["tilt"](p) for p in given["coverage"]])
    quantiles = np.array([p.ppf(LEVELS) for p in populations])
    points = populations[0].ppf(LEVELS)
    heights = np.array([p.cdf(points) for p in populations])
    estimates = inference.tilts(fit)
    slopes = inference.Estimate(estimates.value[1:, 1:], estimates.error[1:, 1:])
    differences = inference.quantile_differences(fit, LEVELS)
    results: dict[str, tuple[tuple[Floats, Floats], Floats]] = {
        "tilt": (slopes.interval(), (tilts - tilts[0])[1:]),
        "mean": (inference.mean(fit).interval(), np.array([[p.mean()] for p in populations])),
        "quantile": (inference.quantile_interval(fit, LEVELS), quantiles),
        "distribution": (
            inference.distribution(fit, points).interval(),
            heights,
        ),
        "quantile difference": (
            tuple(limit[1:] for limit in differences.interval()),  # type: ignore[dict-item]
            (quantiles - quantiles[0])[1:],
        ),
        "dominance": (
            tuple(limit[0, 1:] for limit in inference.dominance(fit).interval()),  # type: ignore[dict-item]
            DOMINANCE[family],
        ),
    }
    for name, ((low, high), truth) in results.items():
        add(name, ((low <= truth) & (truth <= high)).ravel())


def covered_by_bootstrap(family: str, n: int, rng: np.random.Generator, add: Callable[[str, Any], None]) -> None:
    """One repetition: whether the bootstrap intervals of the means hold the truth."""
    populations = [FAMILIES[family]["of"](p) for p in FAMILIES[family]["coverage"]]
    fit = DensityRatioModel(family).fit([p.rvs(n, random_state=rng) for p in populations])
    x, truth = fit.values[:, 0], np.array([p.mean() for p in populations])
    low, high = inference.bootstrap(fit, lambda w: w.T @ x, REPLICATES).interval()
    add("mean, bootstrap", (low <= truth) & (truth <= high))


def dominance_of(family: str) -> Floats:
    """``P(X_0 < X_j)`` of the true populations, by quantiles of the second."""
    given = FAMILIES[family]
    first, *others = [given["of"](p) for p in given["coverage"]]
    levels: Floats = (np.arange(20_000) + 0.5) / 20_000
    return np.array([first.cdf(p.ppf(levels)).mean() for p in others])


DOMINANCE = {family: dominance_of(family) for family in FAMILIES}


def powers(change: str, amount: float, rng: np.random.Generator, add: Callable[[str, Any], None]) -> None:
    """One repetition: whether each test tells gamma(2, 1) from its changed copy, 50 observations of each."""
    a, b = rng.gamma(2, 1, 50), rng.gamma(2, 1, 50)
    b = b + amount if change == "moved" else b * amount
    fit = DensityRatioModel("gamma").fit([a, b])
    add("density ratio", inference.homogeneity(fit).p_value < 0.05)
    add("Wilcoxon", mannwhitneyu(a, b).pvalue < 0.05)
    add("t", ttest_ind(a, b, equal_var=False).pvalue < 0.05)


CHANGES = {"moved": (0.0, 0.2, 0.4, 0.6), "stretched": (1.25, 1.5, 1.75)}
JOBS: dict[str, Callable[..., None]] = {
    "size": rejections,
    "coverage": covered,
    "bootstrap": covered_by_bootstrap,
    "power": powers,
}


def chunk(job: tuple[str, str, float, int, int]) -> Tally:
    """Some repetitions of one cell."""
    kind, first, second, seed, repetitions = job
    rng = np.random.default_rng([seed, len(kind), *first.encode(), round(100 * second)])
    tally: Tally = {}
    for _ in range(repetitions):
        JOBS[kind](
            first, second if kind == "power" else int(second), rng, lambda k, v: tally.setdefault(k, []).append(v)
        )
    return tally


def percent(tallies: Iterable[Tally]) -> dict[str, Any]:
    """Means over the repetitions, in percent; of several intervals, one figure each."""
    joined: Tally = {}
    for tally in tallies:
        for name, values in tally.items():
            joined.setdefault(name, []).extend(values)
    return {name: np.round(100 * np.mean(values, axis=0), 2).tolist() for name, values in joined.items()}


def seconds_of_a_fit() -> dict[str, float]:
    """One fit of three normal populations of 10,000 with tilts, means, quartiles and their intervals."""
    rng = np.random.default_rng(0)
    samples = [rng.normal(m, s, 10_000) for m, s in FAMILIES["normal"]["coverage"]]
    wall, cpu = [], []
    for _ in range(5):
        began, cpu_began = time.perf_counter(), time.process_time()
        fit = DensityRatioModel().fit(samples)
        inference.tilts(fit).interval()
        inference.mean(fit).interval()
        inference.quantile_interval(fit, LEVELS)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    return {"seconds": round(min(wall), 3), "cpu_seconds": round(min(cpu), 3)}


def extremes(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The smallest and the largest figure of all cells, but for uncorrected tests."""
    values = [v for cell in cells.values() for name, v in cell.items() if "uncorrected" not in name]
    flat = np.concatenate([np.atleast_1d(v) for v in values])
    return {"smallest": float(flat.min()), "largest": float(flat.max())}


def main() -> None:
    from benchmarks.result import finish  # imports torch, which the workers do not need

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=JOBS)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cells = [(family, float(n)) for n in SIZES for family in FAMILIES]
    if arguments.kind == "power":
        cells = [(change, amount) for change, amounts in CHANGES.items() for amount in amounts]
    parts = [min(CHUNK, arguments.repetitions - at) for at in range(0, arguments.repetitions, CHUNK)]
    figures: dict[str, Any] = {}
    with ProcessPoolExecutor(arguments.workers) as pool:
        for first, second in cells:
            jobs = [(arguments.kind, first, second, seed, part) for seed, part in enumerate(parts)]
            figures[f"{first} {second:g}"] = percent(pool.map(chunk, jobs))
            print(first, second, figures[f"{first} {second:g}"], file=sys.stderr, flush=True)
    notes: dict[str, Any] = {"repetitions": arguments.repetitions, "range": extremes(figures)}
    if arguments.kind == "coverage":
        notes["fit of 3 x 10,000"] = seconds_of_a_fit()
    finish({arguments.kind: figures, **notes}, arguments.json)


if __name__ == "__main__":
    main()
