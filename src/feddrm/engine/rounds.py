"""Rounds of federated training: who takes part, at which rate, and what the server does with the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from feddrm.data import Batch, Federation, Participant, batch, draw_for, generator_for
from feddrm.engine.client_update import Update, client_update
from feddrm.errors import SettingError
from feddrm.methods import Forward, Method, Sgd, Slots, Stage, Tensors
from feddrm.registry import nearest
from feddrm.threads import Spread, side_by_side

ENGINES = ("auto", "sequential", "graph")
DEVICES = ("cpu", "cuda")

# Tags keep these draws apart from the batches', whose second key is a client's number.
ASKED, FAILED = 1_000_001, 1_000_002


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train, and who takes part.

    ``participation`` is the fraction of clients asked in every round; ``dropout`` the chance that
    one that was asked does not answer.
    """

    rounds: int = 800
    local_steps: int = 10
    batch_size: int = 128
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    participation: float = 1.0
    dropout: float = 0.0
    seed: int = 2025

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded."""
        for name in ("rounds", "local_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)}: give at least 1")
        if not 0 < self.lr < math.inf:
            raise SettingError(f"lr={self.lr}: the learning rate must be positive (the paper: 0.01)")
        if not 0 <= self.momentum < 1:
            raise SettingError(f"momentum={self.momentum}: it must lie in [0, 1)")
        if not 0 <= self.weight_decay < math.inf:
            raise SettingError(f"weight_decay={self.weight_decay}: it cannot be negative")
        if not 0 < self.participation <= 1:
            raise SettingError(f"participation={self.participation}: the fraction of clients must lie in (0, 1]")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"dropout={self.dropout}: the chance must lie in [0, 1)")
        if not 0 <= self.seed < 2**32:
            raise SettingError(f"seed {self.seed} is out of range: give one from 0 to {2**32 - 1}")

    def rate(self, round: int) -> float:
        """Cosine schedule over all rounds (1, 2, ...), constant within one, no restart for tuning."""
        return 0.5 * self.lr * (1 + math.cos(math.pi * (round - 1) / self.rounds))

    def sgd(self, lr: Tensor) -> Sgd:
        """The optimiser's settings at the rate of a round."""
        return Sgd(self.momentum, self.weight_decay, lr)


class State(NamedTuple):
    """Everything between two rounds: what the server holds, and what each client keeps to itself."""

    round: int
    shared: Tensors
    private: tuple[Slots, ...]


class RoundResult(NamedTuple):
    """One finished round; ``loss`` is the weighted mean over who answered (None if nobody did)."""

    state: State
    stage: Stage
    lr: float
    loss: float | None
    answered: tuple[int, ...]


def first_state(method: Method, leaves: Tensors, clients: int) -> State:
    """Before round 1: every client starts from the same model."""
    shared, private = method.start(leaves)
    return State(0, shared, (private,) * clients)


def participants(plan: Plan, clients: int, round: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(asked, answered) of a round, in client order: drawn from the seed and the round alone."""
    count = _asked(plan, clients)
    order = torch.randperm(clients, generator=generator_for(plan.seed, ASKED, round))
    asked = tuple(sorted(order[:count].tolist()))
    chance = torch.rand(clients, generator=generator_for(plan.seed, FAILED, round), dtype=torch.float64)
    return asked, tuple(i for i in asked if chance[i] >= plan.dropout)


def _asked(plan: Plan, clients: int) -> int:
    return max(1, round_half_up(plan.participation * clients))


def round_half_up(x: float) -> int:
    """Halves up, as people count; Python rounds them to even."""
    return math.floor(x + 0.5)


@dataclass(frozen=True)
class RoundSchedule:
    """What happens in which round (1, 2, ...): a function of the plan alone, known long before.

    ``only`` names the clients that answer in each round instead of drawing them.
    """

    method: Method
    plan: Plan
    clients: int
    only: Sequence[Sequence[int]] | None = None

    def stage(self, round: int) -> Stage:
        """Fine-tuning comes last."""
        tuned = self.plan.rounds - self.method.tuning_rounds(self.plan.rounds)
        return Stage(self.plan.local_steps, tuning=round > tuned)

    def answering(self, round: int) -> tuple[int, ...]:
        """Who answers, in client order."""
        return tuple(self.only[round - 1]) if self.only is not None else participants(self.plan, self.clients, round)[1]

    @property
    def seats(self) -> int:
        """The most that may answer in a round."""
        return max(map(len, self.only), default=0) if self.only is not None else _asked(self.plan, self.clients)


def federate(
    schedule: RoundSchedule,
    net: Forward,
    federation: Federation,
    state: State,
    *,
    workers: int = 1,
    engine: str = "sequential",
) -> Iterator[RoundResult]:
    """Play the rounds that are left after ``state``. Each round is a function of the state and the seed.

    The ``sequential`` engine trains ``workers`` clients side by side, which changes no bit of the
    result. The ``graph`` engine trains all clients at once on a GPU.
    """
    with _player(schedule, net, federation, workers=workers, engine=engine) as play:
        while state.round < schedule.plan.rounds:
            result = play(state)
            state = result.state
            yield result


@contextmanager
def _player(
    schedule: RoundSchedule, net: Forward, federation: Federation, *, workers: int, engine: str
) -> Iterator[Callable[[State], RoundResult]]:
    if engine == "graph":
        from feddrm.engine.cuda_graph import GraphEngine

        graphs = GraphEngine(schedule, net, federation)
        try:
            yield graphs.play
        finally:
            graphs.close()
        return
    with side_by_side(workers) as spread:
        yield lambda state: play_round(schedule, net, federation, state, spread)


def engine_for(engine: str, device: str) -> str:
    """The engine that ``engine`` names; ``auto`` is graph on a GPU and sequential elsewhere."""
    if engine not in ENGINES:
        raise SettingError(f"unknown engine '{engine}'{nearest(engine, ENGINES)} (known: {', '.join(ENGINES)})")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "unknown"
    if kind not in DEVICES:
        raise SettingError(f"unknown device '{device}'{nearest(device, DEVICES)} (known: {', '.join(DEVICES)})")
    on_gpu = kind == "cuda"
    if engine == "graph" and not on_gpu:
        raise SettingError(f"engine 'graph' needs a GPU, not {device}: use --device cuda, or --engine sequential")
    return ("graph" if on_gpu else "sequential") if engine == "auto" else engine


def play_round(
    schedule: RoundSchedule, net: Forward, federation: Federation, state: State, spread: Spread = map
) -> RoundResult:
    """Play the round after ``state``. Weights are renormalised over the clients that answer."""
    method, number = schedule.method, state.round + 1
    answering = schedule.answering(number)

    def train(client: int) -> Update:
        received = method.send(state.shared, client)
        participant = Participant.of(federation, client)
        return train_client(schedule, net, participant, received, state.private[client], number)

    updates = list(spread(train, answering))
    shared, private, loss = state.shared, list(state.private), None
    if updates:
        sizes = federation.sizes[list(answering)].double()
        weights = sizes / sizes.sum()
        shared = method.aggregate(state.shared, [update.upload for update in updates], weights)
        for client, update in zip(answering, updates, strict=True):
            private[client] = update.private
        loss = float(weights @ torch.stack([update.loss for update in updates]).double().cpu())
    after = State(number, shared, tuple(private))
    return RoundResult(after, schedule.stage(number), schedule.plan.rate(number), loss, answering)


def train_client(
    schedule: RoundSchedule,
    net: Forward,
    participant: Participant,
    received: Tensors,
    private: Slots,
    number: int,
) -> Update:
    """One client's work in round ``number``: a function of its own samples and of what it received.

    The result does not depend on where it runs: here, in a thread, or at a site of its own.
    """
    client, plan, stage = participant.client, schedule.plan, schedule.stage(number)
    device = client.train.x.device

    def batches(phase: int, steps: int) -> Iterator[Batch]:
        drawn = draw_for(
            participant, steps=steps, batch_size=plan.batch_size, seed=plan.seed, round=number, phase=phase
        ).to(device)
        return (batch(client, participant.number, client.train, drawn, step) for step in range(steps))

    streams = [batches(k, phase.steps) for k, phase in enumerate(schedule.method.phases(stage))]
    sgd = plan.sgd(torch.tensor(plan.rate(number), device=device))
    return client_update(schedule.method, net, received, private, streams, stage, sgd)
