"""Cost of training with many clients: seconds of a round and peak memory, up to 1,000 clients on a CPU.

    python -m benchmarks.thousand_clients [--clients 8 32 100 320 1000] [--json FILE]

FedDRM with the perceptron of the digits, 10 local steps, batch 32, a tenth of the clients in every round. Every client
has 70 training and 30 test samples: *rows* with 20 made-up features, or *digits* drawn from scikit-learn's and scanned
by one of eight scanners. Every size runs in a process of its own, whose peak memory is that of the whole run: training,
participants evaluated in every round, complete evaluation and files at the end. A round's time is the median of those
after the first; it includes the evaluation of the participants. benchmarks.cost_curves draws it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks.result import each_alone, finish, peak_gib
from feddrm.data import Federation
from feddrm.data.datasets.digits import SCANNERS
from feddrm.runs import train

Array = NDArray[Any]
SAMPLES, TEST, FEATURES, CLASSES = 100, 0.3, 20, 10
DATA = ("rows", "digits")


def rows(
    clients: int, features: int = FEATURES, samples: int = SAMPLES, classes: int = CLASSES
) -> dict[str, tuple[Array, Array]]:
    """Clients with their own centres, and labels by one linear rule with noise."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(features, classes))
    made = {}
    for i in range(clients):
        x = (rng.normal(size=(samples, features)) + 0.7 * rng.normal(size=features)).astype(np.float32)
        made[f"c{i:04d}"] = x, (x @ rule + rng.gumbel(size=(samples, classes))).argmax(1)
    return made


def digits(clients: int) -> dict[str, tuple[Array, Array]]:
    """Clients that draw digits, some more often than others, and scan them by one of eight scanners."""
    bundle, rng, made = load_digits(), np.random.default_rng(0), {}
    for i in range(clients):
        often = rng.dirichlet(np.full(CLASSES, 0.3)) + 1e-3
        weights = often[bundle.target]
        drawn = rng.choice(len(bundle.target), SAMPLES, p=weights / weights.sum())
        x = SCANNERS[i % len(SCANNERS)](bundle.images[drawn] / 16.0, 1.0, rng)
        made[f"c{i:04d}"] = x[:, None], bundle.target[drawn]
    return made


def measure(data: str, clients: int, rounds: int, **sizes: int) -> dict[str, Any]:
    """One training in this process. ``sizes`` are features, samples and classes of made-up rows."""
    arrays = {"rows": rows, "digits": digits}[data](clients, **sizes)
    classes = tuple(map(str, range(sizes.get("classes", CLASSES))))
    federation = Federation.from_arrays(arrays, test_fraction=TEST, seed=0, classes=classes)
    del arrays
    stamps: list[tuple[float, float]] = []

    def stamp(*_: Any) -> None:
        stamps.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        when = {"window": 1, "every": rounds, "participants": True}
        run = train(
            federation, "feddrm", out=Path(folder) / "run", rounds=rounds, participation=0.1, seed=0,
            evaluation=when, on_round=stamp,
        )  # fmt: skip
        stamp()
        files = [path for path in run.path.rglob("*") if path.is_file()]
        disk = sum(path.stat().st_size for path in files)
    wall, busy = (np.diff([both[k] for both in stamps]).tolist() for k in (0, 1))
    round_s, round_cpu = (statistics.median(times[: rounds - 2]) for times in (wall, busy))
    return {
        "clients": clients,
        "participants": max(1, round(clients / 10)),
        "round_seconds": round_s,
        "round_cpu_seconds": round_cpu,
        "shortest_round_cpu_seconds": min(busy[: rounds - 2]),
        "complete_evaluation_cpu_seconds": busy[rounds - 2] - round_cpu,
        "files_cpu_seconds": busy[rounds - 1],
        "peak_gib": peak_gib(),
        "disk_mib": disk / 2**20,
        "files": len(files),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32, 100, 320, 1000])
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    curves: dict[str, Any] = {}
    for data in given.data:
        curves[data] = {"points": []}
        for point in each_alone(measure, [(data, clients, given.rounds) for clients in given.clients]):
            curves[data]["points"].append(point)
            print(data, point, file=sys.stderr)
    finish({"curves": curves}, given.json)


if __name__ == "__main__":
    main()
