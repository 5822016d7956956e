"""Cost of a training round against the number of clients: seconds and peak memory, up to 1,000 clients on a CPU.

    python -m benchmarks.thousand_clients [--clients 8 32 100 320 1000] [--json FILE] [--figure FILE]

FedDRM with the perceptron of the digits, 10 local steps, batch 32, a tenth of the clients in every round. Every client
has 70 training and 30 test samples: *rows* with 20 made-up features, or *digits* drawn from scikit-learn's and scanned
by one of eight scanners. Every size runs in a process of its own, whose peak memory is that of the whole run: training,
participants evaluated in every round, complete evaluation and files at the end. A round's time is the median of those
after the first; it includes the evaluation of the participants. The exponent is the slope of a straight line through
the points in logarithms.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks.result import finish
from feddrm.data import Federation
from feddrm.data.datasets.digits import SCANNERS
from feddrm.report.figure_files import save_figure
from feddrm.runs import train

Array = NDArray[Any]
SAMPLES, TEST, FEATURES, CLASSES = 100, 0.3, 20, 10
DATA = ("rows", "digits")


def rows(clients: int) -> dict[str, tuple[Array, Array]]:
    """Clients with their own centres, and labels by one linear rule with noise."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(FEATURES, CLASSES))
    made = {}
    for i in range(clients):
        x = (rng.normal(size=(SAMPLES, FEATURES)) + 0.7 * rng.normal(size=FEATURES)).astype(np.float32)
        made[f"c{i:04d}"] = x, (x @ rule + rng.gumbel(size=(SAMPLES, CLASSES))).argmax(1)
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


def measure(data: str, clients: int, rounds: int) -> dict[str, Any]:
    """One training in this process."""
    arrays = {"rows": rows, "digits": digits}[data](clients)
    federation = Federation.from_arrays(arrays, test_fraction=TEST, seed=0, classes=tuple(map(str, range(CLASSES))))
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
        "complete_evaluation_cpu_seconds": busy[rounds - 2] - round_cpu,
        "files_cpu_seconds": busy[rounds - 1],
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "disk_mib": disk / 2**20,
        "files": len(files),
    }


def exponent(clients: Sequence[int], values: Sequence[float]) -> float:
    """The slope of a straight line through the points in logarithms."""
    return float(np.polyfit(np.log(clients), np.log(values), 1)[0])


def figure(curves: dict[str, Any]) -> Figure:
    """Seconds and GiB against clients."""
    drawn = Figure(figsize=(8, 3.2), layout="constrained")
    axes = drawn.subplots(1, 2)
    for place, (key, label) in zip(
        axes, (("round_cpu_seconds", "CPU seconds of a round"), ("peak_gib", "peak memory, GiB")), strict=True
    ):
        for data, curve in curves.items():
            clients = [point["clients"] for point in curve["points"]]
            title = f"{data}: exponent {curve['exponents'][key]:.2f}"
            place.loglog(clients, [point[key] for point in curve["points"]], "o-", label=title)
        place.set(xlabel="clients, a tenth of which take part", ylabel=label)
        place.set_xticks(clients, [f"{number:,}" for number in clients])
        place.minorticks_off()
        place.legend(frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32, 100, 320, 1000])
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--one", action="store_true", help="measure one size in this process and print it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.data[0], given.clients[0], given.rounds)))
        return
    curves: dict[str, Any] = {}
    for data in given.data:
        points = []
        for clients in given.clients:
            words = ["--one", "--data", data, "--clients", str(clients), "--rounds", str(given.rounds)]
            command = [sys.executable, "-m", "benchmarks.thousand_clients", *words]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            points.append(json.loads(done.stdout.splitlines()[-1]))
            print(data, points[-1], file=sys.stderr)
        numbers = [point["clients"] for point in points]
        exponents = {
            key: exponent(numbers, [point[key] for point in points])
            for key in ("round_seconds", "round_cpu_seconds", "peak_gib")
            if len(numbers) > 1
        }
        curves[data] = {"points": points, "exponents": exponents}
    finish({"curves": curves}, given.json)
    if given.figure is not None:
        save_figure(figure(curves), given.figure)


if __name__ == "__main__":
    main()
