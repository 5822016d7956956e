"""Times a client step by number of threads, on an idle machine and beside busy processes.

    python -m benchmarks.threads

The rule in feddrm.runs.config.threads_for follows from it; see docs/decisions/0001-threads.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import numpy as np
import torch

from feddrm.data import Federation, load
from feddrm.engine import Plan, RoundSchedule, federate, first_state, functional
from feddrm.methods import FedDRM
from feddrm.models import Model


def busy() -> None:
    torch.set_num_threads(1)
    x = torch.randn(256, 256)
    while True:
        x = (x @ x).clamp(-1, 1)


def photographs() -> Federation:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.integers(0, 255, (400, 32, 32, 3), dtype=np.uint8), np.arange(400) % 10) for i in range(2)}
    return Federation.from_arrays(clients)


def ms_per_step(federation: Federation, model: str, batch_size: int, threads: int) -> float:
    torch.set_num_threads(threads)
    method, m = FedDRM(), len(federation)
    net = Model.make(model).build(federation.shape, len(federation.classes), m)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    plan = Plan(rounds=3, local_steps=5, batch_size=batch_size)
    times = []
    start = time.perf_counter()
    for _ in federate(RoundSchedule(method, plan, m), functional(net), federation, first_state(method, leaves, m)):
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    return 1e3 * min(times[1:]) / (5 * m)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cores = multiprocessing.cpu_count()
    cases = {
        "mlp, digits, batch 32": (load("digits"), "mlp", 32),
        "lenet, 32x32, batch 128": (photographs(), "lenet", 128),
    }
    print(f"{cores} cores, torch {torch.__version__}")
    for neighbours in (0, cores):
        others = [multiprocessing.Process(target=busy, daemon=True) for _ in range(neighbours)]
        for process in others:
            process.start()
        for name, (federation, model, batch_size) in cases.items():
            row = {t: round(ms_per_step(federation, model, batch_size, t), 2) for t in (1, cores)}
            print(
                f"{name}, {neighbours} busy neighbours: " + ", ".join(f"{t} threads {ms} ms" for t, ms in row.items())
            )
        for process in others:
            process.kill()


if __name__ == "__main__":
    main()
