"""What differential privacy on uploads costs: digits, three sites, 40 rounds, accuracy of each site on its own tests.

python -m benchmarks.deploy_privacy --out results/bench/deploy_privacy.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from feddrm.data import load
from feddrm.deploy.privacy import Privacy
from feddrm.engine import Agenda, first_state, functional, train_client
from feddrm.runs.config import resolve
from feddrm.runs.run import hardware, versions

SITES, CLIP = 3, 1.0
NOISES = (None, 0.0, 0.01, 0.03, 0.1, 0.3, 1.0)


def accuracy(method: str, noise: float | None, seed: int) -> tuple[float, int]:
    """Average over sites after the last round; noise None: no privacy, 0: clipping alone."""
    federation = load("digits", clients=SITES, seed=seed)
    config = resolve(federation, method=method, seed=seed)
    chosen, plan = config.method, config.plan
    net = config.model.build(federation.shape, 10, SITES if chosen.client_branch else None, seed)
    forward, agenda = functional(net), Agenda(config.method, plan, SITES)
    state = first_state(chosen, {leaf: value.detach() for leaf, value in net.named_parameters()}, SITES)
    shared, private = state.shared, list(state.private)
    for number in range(1, plan.rounds + 1):
        uploads = []
        for i in range(SITES):
            received = chosen.send(shared, i)
            stage = agenda.stage(number)
            update = train_client(chosen, forward, federation, plan, received, private[i], stage, i, number)
            private[i] = update.private
            uploads.append(update.upload if noise is None else Privacy(CLIP, noise).protect(update.upload, received))
        shared = chosen.aggregate(shared, uploads, federation.weights)
    right = tested = 0
    for i, client in enumerate(federation.clients):
        model = chosen.serve(chosen.send(shared, i), private[i])
        with torch.no_grad():
            right += int((forward(model, client.view(client.test.x)).logits.argmax(1) == client.test.y).sum())
        tested += len(client.test)
    return right / tested, plan.rounds


def main() -> None:
    """Measure and print; --out keeps the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    out = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for method in ("feddrm",):
        for noise in NOISES:
            found = [accuracy(method, noise, seed) for seed in range(out.seeds)]
            values = torch.tensor([value for value, _ in found])
            epsilon = Privacy(CLIP, noise).epsilon(found[0][1]) if noise else None
            rows.append({"method": method, "clip": None if noise is None else CLIP, "noise": noise, "epsilon": epsilon,
                         "accuracy": float(values.mean()), "std": float(values.std())})  # fmt: skip
            print(rows[-1], flush=True)
    if out.out is not None:
        told = {"rows": rows, "seeds": out.seeds, "hardware": hardware("cpu"), "versions": versions()}
        out.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
