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


def measure_fit(
    clients: int, samples: int, features: int = FIT_FEATURES, classes: int = 2, heads: bool = False
) -> dict[str, Any]:
    """The fit of the router, without heads unless they are asked for; its peak is that of the process."""
    rng = np.random.default_rng(0)
    centres = (0.7 * rng.normal(size=(clients, 1, features))).astype(np.float32)

    def made(count: int) -> dict[str, Any]:
        x = centres + rng.standard_normal((clients, count, features), dtype=np.float32)
        return {f"site-{i:04}": (rows, np.arange(count) % classes) for i, rows in enumerate(x)}

    federation = Federation.from_arrays(made(samples), test=made(TEST_SAMPLES))
    before = peak_gib()
    started, busy = time.perf_counter(), time.process_time()
    chosen = fit_router(None, {}, federation, RouterSettings(features="raw", heads=heads)).chosen
    return {
        "features": features,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - busy,
        "peak_gib": peak_gib(),
        "peak_gib_before": before,
        **{key: chosen["router"][key] for key in ("ridge", "rounds", "converged", "held_out_accuracy")},
        "left_out": chosen.get("left_out", []),
    }


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_decision(clients: int, rows: int) -> dict[str, float]:
    """Milliseconds of the product, of the decision as the gateway computes it, and with all clients ranked."""
    router, query = made_query(clients, rows, DECISION_FEATURES)
    x, weight = torch.from_numpy(query.x), router.weight.T.contiguous()
    with intra_op_threads(1), torch.inference_mode():
        return {
            "product": shortest(lambda: x @ weight),
            "decision": shortest(lambda: decide(router, [query])),
            "with_ranking": shortest(lambda: decide(router, [query])[0].rankings),
        }


def made_query(clients: int, rows: int, features: int) -> tuple[Router, RouterQuery]:
    """A router of made weights, and a query of so many rows."""
    g = torch.Generator().manual_seed(0)
    router = Router(
        tuple(f"site-{i:04}" for i in range(clients)),
        Recipe.parse("raw"),
        Scaler(torch.zeros(features), torch.ones(features)),
        0.1 * torch.randn(clients, features, generator=g),
        torch.randn(clients, generator=g),
        torch.full((clients,), 1 / clients).log(),
        calibration=Calibration(1.3),
        shape=(features,),
    )
    x = torch.randn(rows, features, generator=g).numpy()
    return router, RouterQuery("features", x, "density", 1.0, (True,) * clients, 1.0)


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
