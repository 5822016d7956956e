"""Rounds of federated training: who takes part, at which rate, and what the server does with the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from feddrm.data import Batch, Federation, batch, draw_for, generator_for
from feddrm.engine.client_update import Update, client_update
from feddrm.errors import SettingError
from feddrm.methods import Forward, Method, Sgd, Slots, Stage, Tensors
from feddrm.registry import nearest
from feddrm.threads import Map, thread_map

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

    @property
    def sgd(self) -> Sgd:
        return Sgd(self.momentum, self.weight_decay)


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
    only: tuple[tuple[int, ...], ...] | None = None

    def stage(self, round: int) -> Stage:
        """Fine-tuning comes last."""
        tuned = self.plan.rounds - self.method.tuning_rounds(self.plan.rounds)
        return Stage(self.plan.local_steps, tuning=round > tuned)

    def answering(self, round: int) -> tuple[int, ...]:
        """Who answers, in client order."""
        return self.only[round - 1] if self.only is not None else participants(self.plan, self.clients, round)[1]

    @property
    def seats(self) -> int:
        """The most that may answer in a round."""
        return max(map(len, self.only), default=0) if self.only is not None else _asked(self.plan, self.clients)


def federate(
    method: Method,
    net: Forward,
    federation: Federation,
    plan: Plan,
    state: State,
    *,
    only: Sequence[Sequence[int]] | None = None,
    workers: int = 1,
    engine: str = "sequential",
) -> Iterator[RoundResult]:
    """Play the rounds that are left after ``state``; each one is a function of the state and the seed.

    ``only`` names the clients that answer in each round (by round number from 1) instead of drawing
    them. The ``sequential`` engine trains ``workers`` clients side by side, which changes no bit of
    the result; ``graph`` trains all of them at once on a GPU.
    """
    agenda = RoundSchedule(method, plan, len(federation), None if only is None else tuple(map(tuple, only)))
    with _player(engine, method, net, federation, agenda, workers) as play:
        while state.round < plan.rounds:
            played = play(state)
            state = played.state
            yield played


@contextmanager
def _player(
    engine: str, method: Method, net: Forward, federation: Federation, agenda: RoundSchedule, workers: int
) -> Iterator[Callable[[State], RoundResult]]:
    if engine == "graph":
        from feddrm.engine.cuda_graph import GraphEngine

        graphs = GraphEngine(method, net, federation, agenda)
        try:
            yield graphs.play
        finally:
            graphs.close()
        return
    with thread_map(workers) as spread:

        def play(state: State) -> RoundResult:
            number = state.round + 1
            stage, answering = agenda.stage(number), agenda.answering(number)
            return play_round(method, net, federation, agenda.plan, state, stage, answering, spread)

        yield play


def engine_for(engine: str, device: str) -> str:
    """``auto``: graph on a GPU, sequential elsewhere."""
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
    method: Method,
    net: Forward,
    federation: Federation,
    plan: Plan,
    state: State,
    stage: Stage,
    answering: tuple[int, ...],
    spread: Map = map,
) -> RoundResult:
    """One round; weights are renormalised over who answers."""
    number = state.round + 1
    rate = plan.rate(number)

    def work(client: int) -> Update:
        return _update(method, net, federation, plan, state, stage, client)

    updates = list(spread(work, answering))
    shared, private, loss = state.shared, list(state.private), None
    if updates:
        sizes = federation.sizes[list(answering)].double()
        weights = sizes / sizes.sum()
        shared = method.aggregate(state.shared, [update.upload for update in updates], weights)
        for client, update in zip(answering, updates, strict=True):
            private[client] = update.private
        loss = float(weights @ torch.stack([update.loss for update in updates]).double().cpu())
    return RoundResult(State(number, shared, tuple(private)), stage, rate, loss, answering)


def _update(
    method: Method, net: Forward, federation: Federation, plan: Plan, state: State, stage: Stage, client: int
) -> Update:
    received = method.send(state.shared, client)
    return train_client(method, net, federation, plan, received, state.private[client], stage, client, state.round + 1)


def train_client(
    method: Method,
    net: Forward,
    federation: Federation,
    plan: Plan,
    received: Tensors,
    private: Slots,
    stage: Stage,
    client: int,
    number: int,
) -> Update:
    """What one client does in round ``number``, from its own samples and what it received: wherever it is."""
    device = federation.clients[client].train.x.device
    streams = [
        _stream(federation, plan, client, number, k, phase.steps) for k, phase in enumerate(method.phases(stage))
    ]
    lr = torch.tensor(plan.rate(number), device=device)
    return client_update(method, net, received, private, streams, stage, plan.sgd, lr)


def _stream(federation: Federation, plan: Plan, client: int, round: int, phase: int, steps: int) -> Iterator[Batch]:
    holder = federation.clients[client]
    drawn = draw_for(
        federation, client, steps=steps, batch_size=plan.batch_size, seed=plan.seed, round=round, phase=phase
    ).to(holder.train.x.device)
    return (batch(holder, client, holder.train, drawn, step) for step in range(steps))
