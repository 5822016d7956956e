"""Times the fit of the exact router and its routing.

    python -m benchmarks.router [--device cuda] [--json results/bench/router.json]

The fit has 8 clients, 42,000 samples and 2,054 features, the sizes of CIFAR-10 with ResNet-18. The features are
simulated: their second moments fall like 1 / rank, as for real features, and the clients' means differ a little along
all directions. They are nearly Gaussian, so round zero, the linear discriminant, is already close to the optimum. The
times are therefore valid for real features, the number of rounds is not.
Routing takes 256 embeddings at once; the time of the trunk is not included.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import finish
from feddrm.router import Recipe, Router
from feddrm.router.solver.client_statistics import Sample, client_scores
from feddrm.router.solver.lbfgs import FitState
from feddrm.router.solver.problem import Problem, Scaler, add
from feddrm.router.solver.solve import moments_of, pooled, scaler_of, solve

SIZES = (5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410)


def made_up(features: int, scale: float, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Training and test features of every client."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, features + 1).float().rsqrt()
    mix = torch.linalg.qr(torch.randn(features, features, generator=generator)).Q
    means = torch.randn(len(SIZES), features, generator=generator) * spread * 0.065
    parts: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for mean, size in zip(means, SIZES, strict=True):
        for part, count in zip(parts, (max(40, int(size * scale)), max(20, int(size * scale * 0.4))), strict=True):
            z = torch.randn(count, features, generator=generator)
            tails = torch.rand(count, 1, generator=generator).add_(0.5)  # heavier than Gaussian
            part.append(((z * tails * spread + mean) @ mix).to(device))
    return parts


def fit(features: int, scale: float, device: str) -> dict[str, Any]:
    train, test = made_up(features, scale, device)

    def samples(parts: list[torch.Tensor], scaler: Scaler) -> list[Sample]:
        return [Sample(scaler(x), torch.full((len(x),), i, device=device)) for i, x in enumerate(parts)]

    def wait() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    if device.startswith("cuda"):  # warm-up: libraries load, and their first calls are slow
        warm = samples([x[:200] for x in train], scaler_of([x[:200] for x in train]))
        solve(Problem(len(SIZES), features, 1e-3), warm, moments_of([s.x for s in warm]), rounds=3)
    began = wait()
    scaler = scaler_of(train)
    mine = samples(train, scaler)
    prepared = wait()
    whitening = moments_of([s.x for s in mine])
    whitened = wait()
    problem = Problem(len(SIZES), features, 1e-4)
    result = solve(problem, [pooled(mine)], whitening, rounds=60, tolerance=1e-6)
    done = wait()

    theirs = samples(test, scaler)
    trace: list[float] = []

    def watch(state: FitState) -> None:
        total = add([client_scores(sample, state.iterate) for sample in theirs])
        trace.append(round(float(total["correct"] / total["count"]), 4))

    long = solve(problem, [pooled(mine)], whitening, rounds=200, tolerance=1e-9, watch=watch)
    final = trace[-1]
    enough = next(i for i, accuracy in enumerate(trace, start=1) if accuracy >= final - 0.003)
    return {
        "samples": sum(len(x) for x in train),
        "features": features,
        "seconds": {
            "standardise": round(prepared - began, 3),
            "whiten": round(whitened - prepared, 3),
            "solve": round(done - whitened, 3),
            "total": round(done - began, 3),
        },
        "rounds": result.rounds,
        "loss": result.loss,
        "optimum_loss": long.loss,
        "client_accuracy_by_round": trace[:20],
        "client_accuracy_at_optimum": final,
        "rounds_to_within_0.3_points": enough,
    }


def routing(device: str, width: int = 512, batch: int = 256) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    router = Router(
        names=tuple(f"client{i}" for i in range(len(SIZES))),
        recipe=Recipe.parse("embedding"),
        scaler=Scaler(torch.zeros(width), torch.ones(width)),
        weight=torch.randn(len(SIZES), width, generator=generator),
        bias=torch.zeros(len(SIZES)),
        log_prior=torch.full((len(SIZES),), 1 / len(SIZES)).log(),
    ).to(device)
    x = torch.randn(batch, width, generator=generator).to(device)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        router.route_features(x).client.cpu()
        times.append(time.perf_counter() - began)
    return {"batch": batch, "features": width, "median_ms": round(1e3 * sorted(times)[len(times) // 2], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--features", type=int, default=2054)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of samples")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {
        "fit": fit(arguments.features, arguments.scale, arguments.device),
        "route": routing(arguments.device),
    }
    finish(result, arguments.json, arguments.device)


if __name__ == "__main__":
    main()
