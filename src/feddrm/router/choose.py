"""Choosing by validation: every client holds out a part of its training data and returns losses and counts only.

The parts are held out from the fit of the router and the heads, not from the training of the trunk:
a trunk that has seen them makes them look easier than new queries are. Ridge strengths chosen on
them are, if anything, too small. Test data is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.data import generator_for
from feddrm.errors import SettingError
from feddrm.router.fit import Fit, Problem, Sample, Whitening, add, client_scores, solve

RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
FINER = (3.0, 1.0, 0.3)  # times the best of these
FOLD = int.from_bytes(b"fold", "big")
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


def choose_ridge(
    problem: Callable[[float], Problem],
    folds: Sequence[tuple[Sequence[Sample], Sequence[Sample]]],
    whitening: Whitening | None,
    *,
    ridges: Sequence[float] = RIDGES,
    rounds: int = 12,
    tolerance: float = 1e-5,
) -> Chosen:
    """Fit along a path from strong to weak on every fold, each strength starting where the one before ended.

    The path ends with the first strength that is worse than the one before: the loss falls, then rises.
    """
    starts: list[Tensor | None] = [None] * len(folds)
    best: Chosen | None = None
    path: list[tuple[float, float, float]] = []
    for ridge in ridges:
        fits: list[Fit] = []
        scores = []
        for number, (outside, inside) in enumerate(folds):
            fits.append(
                solve(problem(ridge), outside, whitening, start=starts[number], rounds=rounds, tolerance=tolerance)
            )
            starts[number] = fits[-1].point
            scores += [client_scores(sample, fits[-1].point) for sample in inside if len(sample)]
        total = add(scores)
        loss, accuracy = float(total["loss"] / total["count"]), float(total["correct"] / total["count"])
        path.append((ridge, loss, accuracy))
        if best is not None and loss >= best.loss:
            break
        best = Chosen(ridge, loss, accuracy, tuple(fit.point for fit in fits), ())
    assert best is not None
    return Chosen(best.ridge, best.loss, best.accuracy, best.folds, tuple(path))
