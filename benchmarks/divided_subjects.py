"""Measures what it costs to divide the samples of one patient between training and test.

    python -m benchmarks.divided_subjects [--seeds 5] [--json results/bench/divided_subjects.json]

Two made-up hospitals have sixty patients each, and every patient ten samples that hardly differ. A patient's label is
the toss of a coin, and both hospitals draw patients alike: whoever is right more often than half of the time, about the
label or the hospital, knows the patient again. Fits are those of `feddrm fit`, on the samples themselves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import feddrm
from benchmarks.result import finish

PATIENTS, SAMPLES, COLUMNS, NOISE = 60, 10, 40, 0.1


def hospitals(seed: int) -> dict[str, tuple[Any, Any, Any]]:
    """Samples, labels and patients of two hospitals."""
    rng, patient, made = np.random.default_rng(seed), np.repeat(np.arange(PATIENTS), SAMPLES), {}
    for name in ("oslo", "lima"):
        label, centre = rng.integers(0, 2, PATIENTS), rng.normal(size=(PATIENTS, COLUMNS))
        made[name] = centre[patient] + NOISE * rng.normal(size=(len(patient), COLUMNS)), label[patient], patient
    return made


def measure(seed: int, by_patient: bool) -> dict[str, float]:
    """The accuracies of one fit in percent; the patients are told or not."""
    arrays = {name: own if by_patient else own[:2] for name, own in hospitals(seed).items()}
    with tempfile.TemporaryDirectory() as folder:
        run = feddrm.fit(feddrm.Federation.from_arrays(arrays, seed=seed), out=Path(folder) / "run")
        summary = run.summary or {}
    return {
        "average": 100 * summary["average_accuracy"]["mean"],
        "hospital found": 100 * summary["client_accuracy"]["exact_density"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"seeds": arguments.seeds}
    for what in ("samples", "patients"):
        seeds = [measure(seed, what == "patients") for seed in range(arguments.seeds)]
        figures[f"divided by {what}"] = {name: round(statistics.mean(s[name] for s in seeds), 1) for name in seeds[0]}
    finish(figures, arguments.json)


if __name__ == "__main__":
    main()
