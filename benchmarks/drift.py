"""Measures false alarms of the watch on drift, and after how many queries it notices that pictures are brighter.

    python -m benchmarks.drift [--streams 20] [--queries 2000] [--json results/bench/drift.json]

The queries of a stream are test digits, drawn with replacement in the shares of the training mixture. Shifted streams
have all pixels changed by a gamma of 0.7 from the first query on. The router is the default one of eight clients.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import result
from feddrm.data import load
from feddrm.drm.basis import Floats
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
    digits = load("digits")
    with tempfile.TemporaryDirectory() as folder:
        run = train(digits, "feddrm", out=Path(folder) / "run", rounds=arguments.rounds)
        router = run.fit_router(heads=False)
    reference = router.calibration.reference
    assert reference is not None
    x = torch.cat([client.test.x for client in digits.clients])
    shares = torch.cat([torch.full((len(c.test.x),), len(c.train.x) / len(c.test.x)) for c in digits.clients])

    def first_alarms(pixels: torch.Tensor, seed: int) -> list[int | None]:
        """After how many queries of every stream the first alarm came; None without one."""
        decision = router.route(pixels)
        assert decision.strangeness is not None
        rows = drift_statistics(decision.log_density_ratio.numpy(), decision.strangeness.numpy())
        return [first_alarm(rows, seed + stream) for stream in range(arguments.streams)]

    def first_alarm(rows: Floats, seed: int) -> int | None:
        drawn = shares.multinomial(arguments.queries, replacement=True, generator=torch.Generator().manual_seed(seed))
        tests = list(DriftMonitor(reference).add(rows[drawn.numpy()]))
        return next((WINDOW * (i + 1) for i, test in enumerate(tests) if test.p_value < LEVEL), None)

    brighter = (255 * (x.double() / 255) ** GAMMA).round().to(torch.uint8)
    figures = {
        "what": "first alarm of every stream, in queries; null: none",
        "streams": arguments.streams,
        "queries": arguments.queries,
        "test_digits": len(x),
        "reference_samples": reference.count,
        "statistics": len(reference.mean),
        "window": WINDOW,
        "false_alarm": {"probability": FALSE_ALARM, "queries": HORIZON},
        "unshifted": first_alarms(x, 0),
        f"gamma_{GAMMA}": first_alarms(brighter, 1000),
        "seconds": round(time.perf_counter() - started, 1),
    }
    result.finish(figures, arguments.json)


if __name__ == "__main__":
    main()
