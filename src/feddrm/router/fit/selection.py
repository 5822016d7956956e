"""Choosing by validation: every client holds out a part of its training data and returns losses and counts only.

The parts are held out from the fit of the router and the heads, not from the training of the trunk:
a trunk that has seen them makes them look easier than new queries are. Ridge strengths chosen on
them are, if anything, too small. Test data is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddrm.data import generator_for
from feddrm.errors import SettingError
from feddrm.router.solver.solve import BlockDiagonal, ClientSums, Problem, Sample, Whitening, add, client_scores, solve

RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
FINER = (3.0, 1.0, 0.3)  # times the best of these
FOLD = int.from_bytes(b"fold", "big")
PATH_TOLERANCE = 1e-5  # of fits that only choose
SMALL = 10_000  # samples; below, every part is held out in turn


@dataclass(frozen=True)
class Holdout:
    """Each client's samples fall into ``parts`` at random, of which ``used`` are held out, one after another.

    All parts in turn is cross-validation, for small federations; one of sixteen (6 %) is enough for
    large ones.
    """

    parts: int
    used: int

    @classmethod
    def suggested(cls, samples: int) -> Holdout:
        return cls(5, 5) if samples < SMALL else cls(16, 1)

    def check(self) -> None:
        """Refuse what holds out nothing, or everything."""
        if self.parts < 2 or not 1 <= self.used <= self.parts:
            raise SettingError(f"holdout of {self.used} of {self.parts} parts: give two parts or more, and use some")

    def draw(self, sizes: Sequence[int], seed: int, copies: int = 1) -> list[Tensor]:
        """The part of every sample, per client; ``copies`` of a sample (crops) one after another share theirs."""
        self.check()
        drawn = []
        for client, size in enumerate(sizes):
            place = torch.randperm(size, generator=generator_for(seed, FOLD, client))
            drawn.append((place % self.parts).repeat(copies))
        return drawn


@dataclass(frozen=True, eq=False)
class Chosen:
    """The strength with the least held-out loss, the fits of every fold with it, and the whole path."""

    ridge: float
    loss: float
    accuracy: float
    folds: tuple[Tensor, ...]  # points
    path: tuple[tuple[float, float, float], ...]  # ridge, held-out loss, held-out accuracy


def split(samples: Sequence[Sample], parts: Sequence[Tensor], fold: int) -> tuple[list[Sample], list[Sample]]:
    """Every client's samples outside and inside a part."""
    outside = [s.rows(p.to(s.y.device) != fold) for s, p in zip(samples, parts, strict=True)]
    inside = [s.rows(p.to(s.y.device) == fold) for s, p in zip(samples, parts, strict=True)]
    return outside, inside


class RidgePath:
    """Strengths one after another, from strong to weak, each starting where the one before ended.

    It ends with the first strength that is worse than the best: the loss falls, then rises. Of equal ones
    the stronger is kept, and the path goes on: several may be so strong that nothing moves. Whoever fits
    (:func:`choose_ridge` here, or letters to sites) asks for the next :attr:`ridge` and tells what came out.
    """

    def __init__(self, ridges: Sequence[float], folds: int) -> None:
        self.left = list(ridges)
        self.starts: list[Tensor | None] = [None] * folds
        self._best: Chosen | None = None
        self._path: list[tuple[float, float, float]] = []

    @property
    def ridge(self) -> float | None:
        """The next strength to try; None at the end."""
        return self.left[0] if self.left else None

    def take(self, points: Sequence[Tensor], scores: Sequence[ClientSums]) -> None:
        """The fits of every fold with that strength, and what they are worth on what is held out of them."""
        ridge, total = self.left.pop(0), add(scores)
        loss, accuracy = float(total["loss"] / total["count"]), float(total["correct"] / total["count"])
        self._path.append((ridge, loss, accuracy))
        self.starts = list(points)
        if self._best is None or loss < self._best.loss:
            self._best = Chosen(ridge, loss, accuracy, tuple(points), ())
        elif loss > self._best.loss:
            self.left = []

    @property
    def chosen(self) -> Chosen:
        """The best so far, with the whole path."""
        assert self._best is not None
        return replace(self._best, path=tuple(self._path))


def choose_ridge(
    problem: Callable[[float], Problem],
    folds: Sequence[tuple[Sequence[Sample | BlockDiagonal], Sequence[Sample | BlockDiagonal]]],
    whitening: Whitening | None,
    *,
    ridges: Sequence[float] = RIDGES,
    rounds: int = 12,
    tolerance: float = PATH_TOLERANCE,
) -> Chosen:
    """Fit along a path of strengths on every fold, and keep the one with the least held-out loss."""
    path = RidgePath(ridges, len(folds))
    while (ridge := path.ridge) is not None:
        points: list[Tensor] = []
        scores: list[ClientSums] = []
        for (outside, inside), start in zip(folds, path.starts, strict=True):
            fit = solve(problem(ridge), outside, whitening, start=start, rounds=rounds, tolerance=tolerance)
            points.append(fit.point)
            scores += [client_scores(sample, fit.point) for sample in inside if len(sample)]
        path.take(points, scores)
    return path.chosen
