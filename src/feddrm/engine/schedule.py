"""What happens in which round: plan, schedule, and the state and result of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feddrm.data import generator_for
from feddrm.engine.communication import Communication, sizes_of
from feddrm.engine.private_shards import PrivateShards
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Method, Sgd, Slots, Stage, Tensors
from feddrm.methods.method import checked_parts

# Second keys of these draws. The draws of batches have a client's number there, which is never as large.
ASKED, FAILED = 1_000_001, 1_000_002


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train, and how many clients take part.

    ``participation`` is the fraction of clients asked in every round; ``dropout`` is the chance that
    a client that was asked does not answer. ``clip`` is the largest norm of a gradient (0: any), and
    ``warmup`` the number of first rounds in which the rate rises; the paper has neither.
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
    clip: float = 0.0
    warmup: int = 0

    def check(self, least_rounds: int = 1) -> None:
        """Refuse impossible values before anything is loaded. A method in closed form has no rounds at all."""
        for name, least in (("rounds", least_rounds), ("local_steps", 1), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise SettingError(f"{name}={getattr(self, name)}: give at least {least}")
        conditions = {
            "lr": (0 < self.lr < math.inf, "the learning rate must be positive (the paper: 0.01)"),
            "momentum": (0 <= self.momentum < 1, "it must lie in [0, 1)"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "it cannot be negative"),
            "participation": (0 < self.participation <= 1, "the fraction of clients must lie in (0, 1]"),
            "dropout": (0 <= self.dropout < 1, "the chance must lie in [0, 1)"),
            "seed": (0 <= self.seed < 2**32, f"out of range: give one from 0 to {2**32 - 1}"),
            "clip": (0 <= self.clip < math.inf, "give the largest norm of a gradient, or 0 for none"),
            "warmup": (0 <= self.warmup < max(self.rounds, 1), f"give 0 to {self.rounds - 1}, fewer than the rounds"),
        }
        for name, (holds, problem) in conditions.items():
            if not holds:
                raise SettingError(f"{name}={getattr(self, name)}: {problem}")

    def asked(self, clients: int) -> int:
        """How many clients a round asks. Halves are rounded up; Python's ``round`` would round them to even."""
        return max(1, math.floor(self.participation * clients + 0.5))

    def rate(self, round: int) -> float:
        """Cosine schedule over all rounds (1, 2, ...): constant within a round, no restart for tuning.

        In the ``warmup`` rounds it is multiplied by a factor that rises in equal steps to one.
        """
        cosine = 0.5 * self.lr * (1 + math.cos(math.pi * (round - 1) / max(self.rounds, 1)))
        return cosine * min(1.0, round / (self.warmup + 1))

    def sgd(self, lr: Tensor) -> Sgd:
        """The optimiser's settings at the rate of a round."""
        return Sgd(self.momentum, self.weight_decay, lr, self.clip)

    def as_dict(self) -> dict[str, Any]:
        """Plain values. Clip and warm-up stand there only if they are used, so that older runs can be resumed."""
        return {key: value for key, value in asdict(self).items() if value or key not in ("clip", "warmup")}


class State(NamedTuple):
    """Everything between two rounds: what the server holds, and the private slots of each client."""

    round: int
    shared: Tensors
    private: Sequence[Slots]  # a tuple or, of a large federation, on disk
    communication: Communication = Communication()

    def after(self, shared: Tensors, private: Mapping[int, Slots], communication: Communication) -> State:
        """The state after the next round, with the private slots of its participants and all that was sent so far."""
        _check_aggregated(self.shared, shared)
        number = self.round + 1
        if isinstance(self.private, PrivateShards):
            return State(number, shared, self.private.replaced(number, private), communication)
        slots = tuple(private.get(i, slots) for i, slots in enumerate(self.private))
        return State(number, shared, slots, communication)


def _check_aggregated(before: Tensors, after: Any) -> None:
    """Refuse what a method's ``aggregate`` gives if no client could go on with it."""
    if not isinstance(after, Mapping):
        raise FeddrmError(f"the method's aggregate() gives {type(after).__name__}: return the shared leaves as a dict")
    for leaf, value in before.items():
        if leaf in after and after[leaf].shape != value.shape:
            shapes = f"of shape {tuple(after[leaf].shape)}, not {tuple(value.shape)}"
            raise FeddrmError(f"the method's aggregate() gives '{leaf}' {shapes}: combine the uploads into one")


class RoundResult(NamedTuple):
    """One finished round; ``loss`` is the weighted mean over the clients that answered (None if none did)."""

    state: State
    stage: Stage
    lr: float
    loss: float | None
    answered: tuple[int, ...]


def first_state(method: Method, leaves: Tensors, clients: int) -> State:
    """The state before round 1: every client starts from the same model."""
    shared, private = checked_parts(method, "start", method.start(leaves))
    return State(0, shared, (private,) * clients)


def participants(plan: Plan, clients: int, round: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(asked, answered) of a round, in client order; drawn from the seed and the round alone."""
    order = torch.randperm(clients, generator=generator_for(plan.seed, ASKED, round))
    asked = tuple(sorted(order[: plan.asked(clients)].tolist()))
    chance = torch.rand(clients, generator=generator_for(plan.seed, FAILED, round), dtype=torch.float64)
    return asked, tuple(i for i in asked if chance[i] >= plan.dropout)


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
        return Stage(self.plan.local_steps, round > tuned, round, self.plan.rounds, self.plan.rate(round))

    def asked(self, round: int) -> tuple[int, ...]:
        """The clients that the server sends something, in client order; some of them may not answer."""
        return self._participants(round)[0]

    def answering(self, round: int) -> tuple[int, ...]:
        """The clients that answer, in client order."""
        return self._participants(round)[1]

    def communication(self, state: State, uploads: Sequence[Tensors]) -> Communication:
        """What was sent up to and including the round after ``state``, whose answers are ``uploads``."""
        number = state.round + 1
        sent = (self.method.send(state.shared, client) for client in self.asked(number))
        return state.communication.after(self.stage(number).name, sizes_of(sent), sizes_of(uploads))

    def _participants(self, round: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.only is None:
            return participants(self.plan, self.clients, round)
        return tuple(self.only[round - 1]), tuple(self.only[round - 1])

    @property
    def seats(self) -> int:
        """The largest number of clients that may answer in a round."""
        return max(map(len, self.only), default=0) if self.only is not None else self.plan.asked(self.clients)
