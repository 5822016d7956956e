"""Times feddrm.fit on frozen features: 8 clients, 42,000 samples of 2,048 features, the sizes of CIFAR-10.

    python -m benchmarks.closed_form [--repeat 3] [--json results/bench/closed_form.json]

The features are those of benchmarks.router, with ten classes whose means differ. The time is that of the whole call:
moments, choice of the ridge, heads, corrections, calibration, evaluation on the test samples, all files. The peak memory
is that of the process and includes the samples, which are made in it.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.result import finish
from benchmarks.router import SIZES, made_up
from feddrm import fit
from feddrm.data import Client, Federation, Split

CLASSES = 10


def federation(features: int, scale: float) -> Federation:
    """The made-up features of every client with classes."""
    generator = torch.Generator().manual_seed(1)
    means = 0.2 * torch.randn(CLASSES, features, generator=generator) / features**0.5

    def labelled(x: torch.Tensor) -> Split:
        y = torch.randint(CLASSES, (len(x),), generator=generator)
        for block, labels in zip(torch.split(x, 1024), torch.split(y, 1024), strict=True):
            block += means[labels]  # in place: a second copy would count as memory of the fit
        return Split(x, y)

    train, test = made_up(features, scale, "cpu")
    clients = tuple(
        Client(f"client{i}", labelled(x), labelled(z)) for i, (x, z) in enumerate(zip(train, test, strict=True))
    )
    columns = tuple(f"x{i}" for i in range(features))
    return Federation("made-up", clients, tuple(map(str, range(CLASSES))), "made up", columns=columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--scale", type=float, default=1.0, help="of the clients' sizes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--method", default="fed3r")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    made = federation(arguments.features, arguments.scale)
    seconds, loads, stages = [], [], []
    for _ in range(arguments.repeat):
        loads.append(round(os.getloadavg()[0], 1))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            run = fit(made, arguments.method, out=Path(folder) / "run")
            seconds.append(round(time.perf_counter() - began, 2))
            summary = run.summary or {}
        stages.append({name: round(value, 2) for name, value in summary["router"]["seconds"].items()})
    best = seconds.index(min(seconds))
    figures = {
        "fit": {
            "method": arguments.method,
            "samples": int(made.sizes.sum()),
            "test_samples": sum(len(client.test) for client in made.clients),
            "features": arguments.features,
            "clients": len(SIZES),
            "seconds": min(seconds),
            "all_seconds": seconds,
            "load_before": loads,
            "stages": stages[best],
            "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
            "message_mib": round(summary["router"]["message"]["bytes"] / 2**20, 1),
            "ridge": summary["router"]["ridge"],
            "global_accuracy": round(summary["global_accuracy"]["mean"], 4),
            "client_accuracy": round(summary["client_accuracy"]["exact_density"]["mean"], 4),
        }
    }
    finish(figures, arguments.json)


if __name__ == "__main__":
    main()
