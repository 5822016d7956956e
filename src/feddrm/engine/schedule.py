"""What happens in which round: plan, schedule, and the state and result of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from feddrm.data import generator_for
from feddrm.errors import SettingError
from feddrm.methods import Method, Sgd, Slots, Stage, Tensors

# Second keys of these draws. The draws of batches have a client's number there, which is never as large.
ASKED, FAILED = 1_000_001, 1_000_002


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train, and how many clients take part.

    ``participation`` is the fraction of clients asked in every round; ``dropout`` is the chance that
    a client that was asked does not answer.
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
        """Refuse impossible values before anything is loaded."""
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
        """Cosine schedule over all rounds (1, 2, ...): constant within a round, no restart for tuning."""
        return 0.5 * self.lr * (1 + math.cos(math.pi * (round - 1) / self.rounds))

    def sgd(self, lr: Tensor) -> Sgd:
        """The optimiser's settings at the rate of a round."""
        return Sgd(self.momentum, self.weight_decay, lr)


class State(NamedTuple):
    """Everything between two rounds: what the server holds, and the private slots of each client."""

    round: int
    shared: Tensors
    private: tuple[Slots, ...]


class RoundResult(NamedTuple):
    """One finished round; ``loss`` is the weighted mean over the clients that answered (None if none did)."""

    state: State
    stage: Stage
    lr: float
    loss: float | None
    answered: tuple[int, ...]


def first_state(method: Method, leaves: Tensors, clients: int) -> State:
    """The state before round 1: every client starts from the same model."""
    shared, private = method.start(leaves)
    return State(0, shared, (private,) * clients)


def participants(plan: Plan, clients: int, round: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(asked, answered) of a round, in client order; drawn from the seed and the round alone."""
    order = torch.randperm(clients, generator=generator_for(plan.seed, ASKED, round))
    asked = tuple(sorted(order[: _asked(plan, clients)].tolist()))
    chance = torch.rand(clients, generator=generator_for(plan.seed, FAILED, round), dtype=torch.float64)
    return asked, tuple(i for i in asked if chance[i] >= plan.dropout)


def _asked(plan: Plan, clients: int) -> int:
    """How many clients a round asks. Halves are rounded up; Python's ``round`` would round them to even."""
    return max(1, math.floor(plan.participation * clients + 0.5))


@dataclass(frozen=True)
class RoundSchedule:
    """What happens in which round (1, 2, ...): a function of method and plan, known before the first round.

    ``only`` names the clients that answer in each round. Without it they are drawn.
    """

    method: Method
    plan: Plan
    clients: int
    only: Sequence[Sequence[int]] | None = None

    def stage(self, round: int) -> Stage:
        """Training first, tuning in the last rounds."""
        tuned = self.plan.rounds - self.method.tuning_rounds(self.plan.rounds)
        return Stage(self.plan.local_steps, round > tuned, round, self.plan.rounds)

    def answering(self, round: int) -> tuple[int, ...]:
        """The clients that answer, in client order."""
        return tuple(self.only[round - 1]) if self.only is not None else participants(self.plan, self.clients, round)[1]

    @property
    def seats(self) -> int:
        """The largest number of clients that may answer in a round."""
        return max(map(len, self.only), default=0) if self.only is not None else _asked(self.plan, self.clients)
