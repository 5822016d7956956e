"""The trials of one method: which of them go on after a comparison, and which is the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from feddrm.runs import Config
from feddrm.search.candidates import Candidate
from feddrm.search.halving import Halving
from feddrm.search.trial import SearchTask, Trial, goal_scores


@dataclass(frozen=True, eq=False)
class MethodSearch:
    """The trials of one method, the rungs that they climb, and the configuration of a whole run."""

    task: SearchTask
    halving: Halving
    trials: Sequence[Trial]
    whole: Config

    @property
    def usual(self) -> Trial | None:
        """The trial of the settings that a run has without a search; None if they are not among the candidates."""
        own = self.configuration
        return next((t for t in self.trials if own(t.candidate) == self.whole.as_dict()), None)

    @property
    def finished(self) -> bool:
        """Whether no trial that goes on has still to be compared."""
        climbing = list(self.trials)
        for place, rung in enumerate(self.halving.rungs):
            if not all(rung.round in trial.scores or trial.end for trial in climbing):
                return False
            climbing = self.survivors(climbing, place)
        return True

    @property
    def so_far(self) -> str:
        """What a sentence about the best trial says while others may still beat it."""
        return "" if self.finished else " so far"

    def survivors(self, climbing: Sequence[Trial], place: int) -> list[Trial]:
        """The trials that go on after a rung: those that the fewest others beat, of these the best.

        The usual settings go on as long as they are sound: they are what the others must beat at the end.
        """
        goal, rungs = self.task.goal, self.halving.rungs
        round, usual = rungs[place].round, self.usual
        sound = [trial for trial in climbing if round in trial.scores]

        def rank(trial: Trial) -> tuple[bool, int, float]:
            beaten = sum(other.beats(trial, goal, round) for other in sound)
            return trial is not usual, beaten, -trial.value(goal, round)

        return sorted(sound, key=rank)[: rungs[place + 1].trials] if place + 1 < len(rungs) else []

    def best(self) -> Trial | None:
        """The usual settings, unless another trial is better by more than the standard error of its score.

        The best of several noisy scores is partly luck. Compared are the trials at the highest rung that any has
        reached. None if no trial was scored.
        """
        round, scored = self._compared()
        if self.usual in scored and self._lead(round, scored) <= self._error(round, scored):
            return self.usual
        return scored[0] if scored else None

    def front(self) -> list[Trial]:
        """The trials at the highest rung that no other beats in all scores, the best average first.

        Empty for a goal of one score: there the best trial is all of it.
        """
        goal = self.task.goal
        round, scored = self._compared()
        if len(goal_scores(goal)) == 1:
            return []
        unbeaten = [trial for trial in scored if not any(other.beats(trial, goal, round) for other in scored)]
        return sorted(unbeaten, key=lambda trial: -trial.scores[round]["average"])

    def verdict(self) -> str:
        """The best trial in words, and why it is the best."""
        (round, scored), best = self._compared(), self.best()
        if best is None:
            return "No trial was scored yet."
        what = "the mean of average and system" if self.task.goal == "both" else self.task.goal
        if best is scored[0]:
            return f"Best{self.so_far} by {what} accuracy: {best.candidate.name}."
        return (
            f"Keep the usual settings{self.so_far}, {best.candidate.name}: by {what} accuracy, "
            f"{scored[0].candidate.name} is better by only {100 * self._lead(round, scored):.2f} points, "
            f"at a standard error of {100 * self._error(round, scored):.2f}."
        )

    def configuration(self, candidate: Candidate) -> dict[str, Any]:
        """The settings of a whole run with the candidate's values, for ``feddrm train --config``."""
        plan = replace(self.whole.plan, **candidate.plan)
        return replace(self.whole, plan=plan, method=candidate.method(self.whole.method)).as_dict()

    def _compared(self) -> tuple[int, list[Trial]]:
        """The round of the highest rung at which any trial has a score, and those that have one, the best first."""
        for rung in reversed(self.halving.rungs):
            if scored := [trial for trial in self.trials if rung.round in trial.scores]:
                return rung.round, sorted(scored, key=lambda trial: -trial.value(self.task.goal, rung.round))
        return 0, []

    def _lead(self, round: int, scored: Sequence[Trial]) -> float:
        """How much better the best trial is than the usual settings."""
        if self.usual is None:
            return math.inf
        return scored[0].value(self.task.goal, round) - self.usual.value(self.task.goal, round)

    def _error(self, round: int, scored: Sequence[Trial]) -> float:
        """The standard error of the best score: that of a share among the held-out samples.

        Of a subject's samples all may be right or all wrong, so it counts as one.
        """
        score = scored[0].value(self.task.goal, round)
        subjects = sum(client.test.subjects for client in self.task.federation.clients)
        return math.sqrt(score * (1 - score) / subjects)
