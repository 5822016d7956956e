"""Times clients one after another against all clients stacked under vmap, on a CPU, in one run.

    python -m benchmarks.stacked_clients [--json FILE]

The same FedDRM round (8 clients, 10 steps) runs in three ways: one client after another, as many clients in parallel as
there are cores, and all clients as one batched program by torch.func. Each time is the best of four rounds, or of those
that fit into 20 s. The final parameters of all three ways are compared first.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.result import finish
from feddrm.data import Batch, Client, Federation, Participant, Split, View, batch, draw_for, load
from feddrm.engine import Plan, RoundSchedule, State, first_state, functional, play_round
from feddrm.engine.kernels import largest_product
from feddrm.methods import FedDRM, Phase, Stage, Tensors
from feddrm.models import LeNet, Mlp, Net, Outputs
from feddrm.threads import thread_map, without_onednn_if_small

METHOD, STAGE, CLIENTS = FedDRM(), Stage(10), 8
LONG = 20.0  # seconds to measure one way


def photographs() -> Federation:
    """Random images of CIFAR's size."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(CLIENTS):
        x = torch.randint(0, 256, (1500, 3, 32, 32), dtype=torch.uint8, generator=generator)
        y = torch.randint(0, 10, (1500,), generator=generator)
        clients.append(Client(f"c{i}", Split(x, y), Split(x[:1], y[:1]), View()))
    return Federation("made", tuple(clients), tuple("0123456789"), "made")


def stacked_round(net: Net, federation: Federation, plan: Plan, state: State) -> list[Tensors]:
    """The clients' models after one round, computed as one batched program."""
    forward = functional(net)
    (phase,) = METHOD.phases(STAGE)
    assert isinstance(phase, Phase)
    draws = [
        draw_for(Participant.of(federation, i), steps=10, batch_size=plan.batch_size, seed=plan.seed, round=1, phase=0)
        for i in range(CLIENTS)
    ]
    models = [METHOD.begin(state.shared, private)["model"] for private in state.private]
    values = {leaf: torch.stack([model[leaf] for model in models]) for leaf in models[0]}
    velocity = {leaf: torch.zeros_like(value) for leaf, value in values.items()}

    def loss(leaves: Tensors, *parts: Tensor) -> Tensor:
        return phase.loss(only_logits, {"model": leaves}, Batch(*parts))

    def only_logits(leaves: Tensors, x: Tensor) -> Outputs:
        return forward(leaves, x)._replace(stages={})

    step = torch.func.vmap(torch.func.grad(loss))
    for number in range(10):
        each = [batch(c, i, c.train, draws[i], number) for i, c in enumerate(federation.clients)]
        gradient = step(values, *(torch.stack(parts) for parts in zip(*each, strict=True)))
        for leaf, value in values.items():
            velocity[leaf] = 0.9 * velocity[leaf] + gradient[leaf] + 5e-4 * value
            values[leaf] = value - plan.rate(1) * velocity[leaf]
    return [{leaf: value[i] for leaf, value in values.items()} for i in range(CLIENTS)]


def best(work: Callable[[], object]) -> float:
    """The best time of four rounds, or of fewer if they take long; the first one is a warm-up."""
    times: list[float] = []
    while len(times) < 4 and sum(times) < LONG:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(federation: Federation, net: Net, plan: Plan) -> dict[str, float]:
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state, schedule = first_state(METHOD, leaves, CLIENTS), RoundSchedule(METHOD, plan, CLIENTS)

    def loop(workers: int) -> State:
        torch.set_num_threads(1)
        with without_onednn_if_small(largest_product(net, plan.batch_size)), thread_map(workers) as spread:
            return play_round(schedule, functional(net), federation, state, spread).state

    after = loop(1)
    models = stacked_round(net, federation, plan, state)
    for leaf, value in models[0].items():
        if leaf in after.private[0]["model"]:
            torch.testing.assert_close(value, after.private[0]["model"][leaf], atol=2e-4, rtol=1e-3)
    cores = os.cpu_count() or 1
    times = {"one after another": best(lambda: loop(1)), "side by side": best(lambda: loop(cores))}
    for threads in (1, cores):
        torch.set_num_threads(threads)
        times[f"stacked, {threads} threads"] = best(lambda: stacked_round(net, federation, plan, state))
        print(times, flush=True)
    torch.set_num_threads(1)
    return {way: round(seconds, 3) for way, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    digits, made = load("digits", clients=CLIENTS), photographs()
    seconds = {
        "digits, mlp": measure(
            digits, Mlp().build(digits.shape, 10, CLIENTS, seed=0), Plan(batch_size=32, lr=0.05, seed=0)
        ),
        "photographs, lenet": measure(made, LeNet().build((3, 32, 32), 10, CLIENTS, seed=0), Plan(seed=0)),
    }
    figures = {
        "seconds_per_round": seconds,
    }
    finish(figures, arguments.json)


if __name__ == "__main__":
    main()
