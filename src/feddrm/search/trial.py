"""Trials of a search: resumable runs of one candidate each, trained up to a round and scored there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feddrm.data import Federation
from feddrm.engine import RoundResult, free_card, load_state
from feddrm.errors import DivergedError
from feddrm.evaluation import LASTING, is_collapsed
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.runs import Run, RunFolder, train
from feddrm.runs.run_router import measure_router
from feddrm.search.candidates import Candidate

SMOOTH = 3  # evaluated rounds whose mean is the average accuracy of a trial
GOALS = ("average", "system", "both")


class Paused(KeyboardInterrupt):
    """Raised where a trial has reached its round. The run saves its state and stops, as on Ctrl-C.

    So it does at its last round, too: the figures and models of a finished run take seconds that no comparison needs.
    """


class TimeIsUp(KeyboardInterrupt):
    """Raised where the time is used up. The same search goes on from here later."""


@dataclass(frozen=True)
class SearchTask:
    """What all trials of one method have in common."""

    federation: Federation
    method: Method
    model: str | Model | Mapping[str, Any] | None
    goal: str
    rounds: int
    every: int
    settings: Mapping[str, Any]
    deadline: float | None = None  # by time.monotonic()


@dataclass
class Trial:
    """A candidate with its run folder and its scores by round. ``end`` says why it does not go on."""

    candidate: Candidate
    folder: Path
    scores: dict[int, dict[str, float]] = field(default_factory=dict)
    end: str = ""

    def advance(self, task: SearchTask, until: int, on_round: Callable[[int], None]) -> None:
        """Train up to ``until`` and score there; a trial that diverges or collapses ends, which is no error."""
        if until in self.scores or self.end:
            return
        if self._reached() < until:
            self._train(task, until, on_round)
        if not self.end:
            self.scores[until] = self._score(task, until)

    def value(self, goal: str, round: int) -> float:
        """The mean of the goal's scores at a round; -1 for a trial that ended before."""
        scores = self.scores.get(round)
        if scores is None:
            return -1.0
        return sum(scores[key] for key in goal_scores(goal)) / len(goal_scores(goal))

    def beats(self, other: Trial, goal: str, round: int) -> bool:
        """Whether no score of the goal is worse than the other's, and one is better."""
        pairs = [(self.scores[round][key], other.scores[round][key]) for key in goal_scores(goal)]
        return all(mine >= its for mine, its in pairs) and any(mine > its for mine, its in pairs)

    @property
    def last_scores(self) -> dict[str, float]:
        """The scores at the last comparison; empty before the first."""
        return self.scores[max(self.scores)] if self.scores else {}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``trials.json``."""
        scores = {str(round): values for round, values in self.scores.items()}
        return {**dict(self.candidate.values), "folder": self.folder.name, "scores": scores, "end": self.end}

    def curve(self) -> list[tuple[int, float]]:
        """The held-out average accuracy after every evaluated round."""
        return [(line["round"], line["average_accuracy"]) for line in RunFolder(self.folder).metrics()]

    def _reached(self) -> int:
        """The round of the latest checkpoint."""
        file = RunFolder(self.folder).state_file
        return load_state(file).round if file.exists() else 0

    def _train(self, task: SearchTask, until: int, on_round: Callable[[int], None]) -> None:
        in_a_row = 0

        def listen(result: RoundResult, metrics: dict[str, Any] | None, rounds: int) -> None:
            nonlocal in_a_row
            round = result.state.round
            on_round(round)
            if metrics is not None:
                in_a_row = in_a_row + 1 if is_collapsed(metrics) else 0
            if in_a_row >= LASTING and round < rounds:
                self.end = f"collapsed by round {round}"
                raise Paused
            if round >= until:
                raise Paused
            if task.deadline is not None and time.monotonic() > task.deadline:
                raise TimeIsUp

        plan = {**task.settings, "rounds": task.rounds, **self.candidate.plan}
        given = plan.pop("evaluation", None) or {}
        when = {**given, "window": min(SMOOTH, task.rounds), "every": task.every}
        try:
            with _without_warnings():
                train(
                    task.federation, self.candidate.method(task.method), out=self.folder, model=task.model,
                    on_round=listen, evaluation=when, **plan,
                )  # fmt: skip
        except Paused:
            pass
        except DivergedError:
            self.end = "diverged"
        finally:
            free_card()

    def _score(self, task: SearchTask, until: int) -> dict[str, float]:
        lines = [line for line in RunFolder(self.folder).metrics() if line["round"] <= until]
        last = [line for line in lines[-SMOOTH:] if line["stage"] == lines[-1]["stage"]]
        scores = {"average": sum(line["average_accuracy"] for line in last) / len(last)}
        if task.goal != "average":
            run = Run.open(self.folder)
            figures = measure_router(run.folder, run.config, task.federation, heads=False)
            scores["system"] = figures["system_accuracy"]["exact_density"]
        return scores


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Training warns of a collapse; a search expects some and says so in its own way."""
    log = logging.getLogger("feddrm.runs")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def goal_scores(goal: str) -> tuple[str, ...]:
    """The names of the scores that a goal is the mean of."""
    return ("average", "system") if goal == "both" else (goal,)
