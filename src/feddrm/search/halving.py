"""Successive halving: all candidates train a little, the better half goes on, until a few are compared at the end."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from feddrm.errors import SettingError

EVALUATIONS = 16  # of a trial that reaches the last round


@dataclass(frozen=True)
class Rung:
    """``trials`` candidates train until ``round``; then they are compared."""

    round: int
    trials: int


@dataclass(frozen=True)
class Halving:
    """The rungs of a search, and how many rounds a trial has that reaches the last one."""

    rungs: tuple[Rung, ...]
    rounds: int
    every: int  # rounds between evaluations; every rung is an evaluated round

    @property
    def cost(self) -> int:
        """The rounds of all trials together."""
        steps = itertools.pairwise((Rung(0, 0), *self.rungs))
        return sum(rung.trials * (rung.round - before.round) for before, rung in steps)

    @property
    def starts(self) -> int:
        """How often a trial is started, or goes on after a comparison."""
        return sum(rung.trials for rung in self.rungs)


def plan_halving(candidates: int, rounds: int, longest: int, finalists: int = 2, *, start: int = 0) -> Halving:
    """The longest trials, of at most ``longest`` rounds each, that together take no longer than ``rounds`` rounds.

    A start takes as long as ``start`` rounds. Half of the time is for training, even where starts take more than half.

    A trial has its own schedule of rates, from its first to its last round, so that the last rung compares the
    finished trainings of ``finalists`` candidates. Candidates that leave earlier are compared by what they have reached
    at the same round.
    """
    trials = [candidates]
    while trials[-1] > finalists:
        trials.append(max(finalists, math.ceil(trials[-1] / 2)))
    for length in range(min(rounds, longest), 0, -1):
        halving = _rungs(trials, length)
        if halving is not None and halving.cost <= max(rounds - start * halving.starts, rounds // 2):
            return halving
    raise SettingError(
        f"{candidates} candidates need more than {rounds} rounds: try fewer values, or allow more (cost)"
    )


def _rungs(trials: list[int], length: int) -> Halving | None:
    every = max(1, length // EVALUATIONS)
    if length % every:
        return None
    places = [length // 2 ** (len(trials) - 1 - i) // every * every for i in range(len(trials))]
    if places[0] < 1 or any(later <= earlier for earlier, later in itertools.pairwise(places)):
        return None
    return Halving(tuple(map(Rung, places, trials)), length, every)
