"""Measures how differential privacy of uploads lowers accuracy: digits, three sites, each on its own test samples.

python -m benchmarks.deploy_privacy --json results/bench/deploy_privacy.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import write
from feddrm.data import Participant, load
from feddrm.deploy.privacy import Privacy
from feddrm.engine import RoundSchedule, cpu_kernels, first_state, functional, train_client
from feddrm.runs.config import resolve

SITES, CLIP = 3, 1.0
NOISES = (None, 0.0, 0.01, 0.03, 0.1, 0.3, 1.0)


def accuracy(noise: float | None, seed: int, rounds: int) -> float:
    """FedDRM's accuracy over all sites' test samples after the last round. Noise None: no privacy; 0: only clipping."""
    federation = load("digits", clients=SITES, seed=seed)
    config = resolve(federation, method="feddrm", seed=seed, rounds=rounds)
    method, plan = config.method, config.plan
    net = config.model.build(federation.shape, 10, SITES, seed)
    forward, agenda = functional(net), RoundSchedule(method, plan, SITES)
    state = first_state(method, {leaf: value.detach() for leaf, value in net.named_parameters()}, SITES)
    shared, private = state.shared, list(state.private)
    right = tested = 0
    with cpu_kernels(net, plan.batch_size):
        for number in range(1, plan.rounds + 1):
            uploads = []
            for i in range(SITES):
                received = method.send(shared, i)
                participant = Participant.of(federation, i)
                update = train_client(agenda, forward, participant, received, private[i], number)
                private[i] = update.private
                blurred = update.upload if noise is None else Privacy(CLIP, noise).protect(update.upload, received)
                uploads.append(blurred)
            shared = method.aggregate(shared, uploads, federation.weights)
        for i, client in enumerate(federation.clients):
            model = method.serve(method.send(shared, i), private[i])
            with torch.no_grad():
                right += int((forward(model, client.view(client.test.x)).logits.argmax(1) == client.test.y).sum())
            tested += len(client.test)
    return right / tested


def main() -> None:
    """Measure and print; --json also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for noise in NOISES:
        values = torch.tensor([accuracy(noise, seed, given.rounds) for seed in range(given.seeds)])
        epsilon = Privacy(CLIP, noise).epsilon(given.rounds) if noise else None
        std = float(values.std()) if given.seeds > 1 else None
        rows.append({"noise": noise, "epsilon": epsilon, "accuracy": float(values.mean()), "std": std})
        print(rows[-1], flush=True)
    figures = {
        "method": "feddrm",
        "sites": SITES,
        "clip": CLIP,
        "rounds": given.rounds,
        "seeds": given.seeds,
        "rows": rows,
    }
    write(figures, given.json)


if __name__ == "__main__":
    main()
