"""Times feddrm.fit on frozen features: 8 clients, 42,000 samples of 2,048 features, the sizes of CIFAR-10.

    python -m benchmarks.closed_form [--repeat 3] [--json results/bench/closed_form.json]
    python -m benchmarks.closed_form --digits 5 [--json results/bench/closed_form_digits.json]

The features are those of benchmarks.router, with ten classes whose means differ. The time is that of the whole call:
moments, choice of the ridge, heads, corrections, calibration, evaluation on the test samples, all files. The peak
memory is that of the process and includes the samples, which are made in it.

With --digits N, the accuracies and the bytes of several ways to fit the bundled digits, as means over N seeds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.result import finish, peak_gib
from benchmarks.router import SIZES, made_up
from feddrm import fit
from feddrm.data import Client, Federation, Split
from feddrm.methods import Fed3R, FedLDA, Method
from feddrm.models import Identity, Model

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


WAYS: dict[str, tuple[Method, Model]] = {
    "fed3r": (Fed3R(), Identity()),
    "fedlda": (FedLDA(), Identity()),
    "fed3r, 10 rounds of polish": (Fed3R(polish=10), Identity()),
    "fed3r, float16": (Fed3R(half=True), Identity()),
    **{f"fed3r, {n} random features": (Fed3R(), Identity(features=n)) for n in (32, 128, 512)},
}


def digits(seeds: int) -> dict[str, dict[str, float]]:
    """Means over seeds of the accuracies in percent, and of the KiB that a client sends at most."""
    rows = {}
    for name, (method, model) in WAYS.items():
        values: dict[str, list[float]] = {}
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                summary = fit("digits", method, out=out, model=model, seed=seed, data_settings={"seed": seed}).summary
            assert summary is not None
            for key in ("average_accuracy", "global_accuracy"):
                values.setdefault(key, []).append(100 * summary[key]["mean"])
            for key in ("client_accuracy", "system_accuracy"):
                values.setdefault(key, []).append(100 * summary[key]["exact_density"]["mean"])
            values.setdefault("kib", []).append(summary["router"]["message"]["bytes"] / 1024)
        rows[name] = {key: round(fmean(each), 1) for key, each in values.items()}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--scale", type=float, default=1.0, help="of the clients' sizes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--method", default="fed3r")
    parser.add_argument("--digits", type=int, metavar="SEEDS")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.digits is not None:
        finish({"digits": digits(arguments.digits), "seeds": arguments.digits}, arguments.json)
        return
    made = federation(arguments.features, arguments.scale)
    seconds, cpu_seconds, loads, stages = [], [], [], []
    for _ in range(arguments.repeat):
        loads.append(round(os.getloadavg()[0], 1))
        with tempfile.TemporaryDirectory() as folder:
            began, cpu_began = time.perf_counter(), time.process_time()
            run = fit(made, arguments.method, out=Path(folder) / "run")
            seconds.append(round(time.perf_counter() - began, 2))
            cpu_seconds.append(round(time.process_time() - cpu_began, 2))
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
            "cpu_seconds": cpu_seconds,  # of all threads
            "load_before": loads,
            "stages": stages[best],
            "peak_gib": round(peak_gib(), 2),
            "message_mib": round(summary["router"]["message"]["bytes"] / 2**20, 1),
            "ridge": summary["router"]["ridge"],
            "global_accuracy": round(summary["global_accuracy"]["mean"], 4),
            "client_accuracy": round(summary["client_accuracy"]["exact_density"]["mean"], 4),
        }
    }
    finish(figures, arguments.json)


if __name__ == "__main__":
    main()
