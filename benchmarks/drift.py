"""Measures false alarms of the watch on drift, and after how many queries it notices that pictures are brighter.

    python -m benchmarks.drift [--streams 20] [--queries 2000] [--json results/bench/drift.json]

Every second test digit belongs to the router's reference. The queries of a stream are drawn with replacement from the
others. Shifted streams have all pixels changed by a gamma of 0.7 from the first query on. The router of eight clients
looks at the default features, or at those of the trained network, which has learned its training digits by heart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import result
from feddrm.data import Federation, Split, load
from feddrm.router import Router
from feddrm.router.query_drift import FALSE_ALARM, HORIZON, LEVEL, WINDOW, DriftMonitor, drift_statistics
from feddrm.runs import train

GAMMA = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()
    digits, x = halved(load("digits"))
    brighter = (255 * (x.double() / 255) ** GAMMA).round().to(torch.uint8)
    figures: dict[str, Any] = {
        "what": "first alarm of every stream, in queries; null: none",
        "streams": arguments.streams,
        "queries": arguments.queries,
        "digits_of_streams": len(x),
        "window": WINDOW,
        "false_alarm": {"probability": FALSE_ALARM, "queries": HORIZON},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = train(digits, "feddrm", out=Path(folder) / "run", rounds=arguments.rounds)
        for features in ("auto", "embedding"):
            router = run.fit_router(heads=False, **({} if features == "auto" else {"features": features}))
            reference = router.calibration.reference
            assert reference is not None
            figures[features] = {
                "features": router.recipe.name,
                "reference_samples": reference.count,
                "statistics": len(reference.mean),
                "unshifted": first_alarms(router, x, arguments, 0),
                f"gamma_{GAMMA}": first_alarms(router, brighter, arguments, 1000),
            }
    result.finish({**figures, "seconds": round(time.perf_counter() - started, 1)}, arguments.json)


def halved(digits: Federation) -> tuple[Federation, torch.Tensor]:
    """The federation with every second test sample of a client, and all the others."""
    clients = [replace(c, test=Split(c.test.x[::2], c.test.y[::2])) for c in digits.clients]
    return replace(digits, clients=tuple(clients)), torch.cat([c.test.x[1::2] for c in digits.clients])


def first_alarms(router: Router, pixels: torch.Tensor, arguments: argparse.Namespace, seed: int) -> list[int | None]:
    """After how many queries of every stream the first alarm came; None without one."""
    decision, reference = router.route(pixels), router.calibration.reference
    assert decision.strangeness is not None
    assert reference is not None
    rows = drift_statistics(decision.log_density_ratio.numpy(), decision.strangeness.numpy())
    alarms = []
    for stream in range(arguments.streams):
        drawn = np.random.default_rng(seed + stream).integers(len(rows), size=arguments.queries)
        tests = list(DriftMonitor(reference).add(rows[drawn]))
        alarms.append(next((WINDOW * (i + 1) for i, test in enumerate(tests) if test.p_value < LEVEL), None))
    return alarms


if __name__ == "__main__":
    main()
