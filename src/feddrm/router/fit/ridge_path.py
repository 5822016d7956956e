"""The path of ridge strengths: from strong to weak, until the held-out loss rises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import add


@dataclass(frozen=True, eq=False)
class Chosen:
    """The strength with the least held-out loss, the fits of every fold with it, and the whole path."""

    ridge: float
    loss: float
    accuracy: float
    folds: tuple[Tensor, ...]  # fitted points
    path: tuple[tuple[float, float, float], ...]  # ridge, held-out loss, held-out accuracy

    def as_dict(self, width: int) -> dict[str, Any]:
        """Plain values for the manifest; ``width`` is the number of features."""
        return {
            "features": width,
            "ridge": self.ridge,
            "held_out_loss": self.loss,
            "held_out_accuracy": self.accuracy,
            "path": [list(step) for step in self.path],
        }


class RidgePath:
    """Strengths from strong to weak. Each fit starts where the one before ended.

    The path ends with the first strength that is worse than the best: the loss falls, then rises. Of equal losses
    the stronger ridge wins and the path goes on: several strengths may be so strong that nothing moves.
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
        """Record the fits of every fold with the current strength, and their scores on held-out samples."""
        ridge, total = self.left.pop(0), add(scores)
        loss, accuracy = float(total["loss"] / total["count"]), float(total["correct"] / total["count"])
        self._path.append((ridge, loss, accuracy))
        self.starts = list(points) or self.starts
        if self._best is None or loss < self._best.loss:
            self._best = Chosen(ridge, loss, accuracy, tuple(points), ())
        elif loss > self._best.loss:
            self.left = []

    @property
    def chosen(self) -> Chosen:
        """The best strength so far, with the whole path."""
        assert self._best is not None
        return replace(self._best, path=tuple(self._path))
