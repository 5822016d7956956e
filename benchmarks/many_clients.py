"""Measures a router of many clients: time and peak memory of its fit, and one decision beside the bare matrix product.

    python -m benchmarks.many_clients [--clients 1000] [--samples 70] [--json results/bench/many_clients.json]

Every client has made rows of 20 features about a mean of its own. The decision is of made weights on 200 features, with
one thread; its time is the shortest of 200.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import result
from feddrm.data import Federation
from feddrm.router import Calibration, Recipe, Router, RouterSettings, fit_router
from feddrm.router.solver.problem import Scaler
from feddrm.serve.loaded_router import RouterQuery, decide
from feddrm.threads import intra_op_threads

FIT_FEATURES, DECISION_FEATURES, TEST_SAMPLES = 20, 200, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=70, help="training samples of a client")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = {
        "clients": arguments.clients,
        "samples": arguments.samples,
        "fit": measure_fit(arguments.clients, arguments.samples),
        "decision_ms": {rows: measure_decision(arguments.clients, rows) for rows in (1, 256)},
    }
    result.finish(figures, arguments.json)


def measure_fit(clients: int, samples: int) -> dict[str, Any]:
    """The fit of the router without heads; its peak is that of the process."""
    rng = np.random.default_rng(0)
    centres = 0.7 * rng.normal(size=(clients, FIT_FEATURES))

    def made(count: int) -> dict[str, Any]:
        x = (rng.normal(centres[:, None], 1, size=(clients, count, FIT_FEATURES))).astype(np.float32)
        return {f"site-{i:04}": (rows, np.arange(count) % 2) for i, rows in enumerate(x)}

    federation = Federation.from_arrays(made(samples), test=made(TEST_SAMPLES))
    before = peak_gib()
    started = time.perf_counter()
    chosen = fit_router(None, {}, federation, RouterSettings(features="raw", heads=False)).chosen
    return {
        "features": FIT_FEATURES,
        "seconds": time.perf_counter() - started,
        "peak_gib": peak_gib(),
        "peak_gib_before": before,
        **{key: chosen["router"][key] for key in ("ridge", "rounds", "converged", "held_out_accuracy")},
        "left_out": chosen.get("left_out", []),
    }


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_decision(clients: int, rows: int) -> dict[str, float]:
    """Milliseconds of the product, of the decision as the gateway computes it, and with all clients ranked."""
    g = torch.Generator().manual_seed(0)
    router = Router(
        tuple(f"site-{i:04}" for i in range(clients)),
        Recipe.parse("raw"),
        Scaler(torch.zeros(DECISION_FEATURES), torch.ones(DECISION_FEATURES)),
        0.1 * torch.randn(clients, DECISION_FEATURES, generator=g),
        torch.randn(clients, generator=g),
        torch.full((clients,), 1 / clients).log(),
        calibration=Calibration(1.3),
        shape=(DECISION_FEATURES,),
    )
    x, weight = torch.randn(rows, DECISION_FEATURES, generator=g), router.weight.T.contiguous()
    query = RouterQuery("features", x.numpy(), "density", 1.0, (True,) * clients, 1.0)
    with intra_op_threads(1), torch.inference_mode():
        return {
            "product": shortest(lambda: x @ weight),
            "decision": shortest(lambda: decide(router, [query])),
            "with_ranking": shortest(lambda: decide(router, [query])[0].rankings),
        }


def shortest(work: Callable[[], object], repeats: int = 200) -> float:
    """The time of the fastest of many calls in milliseconds: other processes only add to it."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


if __name__ == "__main__":
    main()
