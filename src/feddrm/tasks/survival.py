"""Discrete-time survival: a head over intervals gives hazards, and censored intervals are masked.

The likelihood of Brown (1975) with a logistic hazard per interval; Kvamme and Borgan, "Continuous and discrete-time
survival prediction with neural networks", Lifetime Data Analysis 27 (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.tasks.task import Task

MOST_DAYS = 2**53  # floats count exactly so far


@dataclass(frozen=True)
class Survival(Task):
    """Time to an event, which follow-up may end before. Interval k ends with day ``edges[k]``, which belongs to it.

    A label is 2 x days + 1 if the event was seen, 2 x days if follow-up ended before it (:meth:`labels`). An interval
    counts for a patient if it was survived whole, or if the event fell into it. So the interval in which follow-up
    ends does not count, unless it ends on the interval's last day. Days after the last edge do not count.
    """

    name: ClassVar[str] = "survival"
    classifies: ClassVar[bool] = False

    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(self.edges))  # a list from JSON cannot be hashed
        if len(self.edges) < 2 or self.edges[0] < 1 or any(a >= b for a, b in pairwise(self.edges)):
            raise SettingError(f"edges={list(self.edges)}: give the last days of two intervals or more, in order")

    @staticmethod
    def labels(days: ArrayLike | Tensor, event: ArrayLike | Tensor) -> Tensor:
        """The labels of patients that were followed for so many days, to the event (1) or not (0).

        Parts of a day are left out. Impossible times and events are refused: as labels they would mean other ones.
        """
        times, events = _numbers("days", days), _numbers("event", event)
        if times.shape != events.shape:
            raise FeddrmError(f"days of shape {tuple(times.shape)}, events of {tuple(events.shape)}: give one of each")
        for name, values, possible, remedy in (
            ("days", times, (times >= 0) & (times <= MOST_DAYS), "give times from 0 up, or leave the patient out"),
            ("event", events, (events == 0) | (events == 1), "give 1 if the event was seen, else 0"),
        ):
            if not bool(possible.all()):
                row = int(possible.logical_not().nonzero()[0, 0])
                raise FeddrmError(f"{name}[{row}] is {values[row].item():g}: {remedy}")
        return 2 * times.long() + events.long()

    @classmethod
    def by_quantiles(cls, labels: Tensor, intervals: int) -> Survival:
        """Intervals with about equally many events each; the last one ends with the last event."""
        days = (labels[labels % 2 == 1] // 2).double()
        if intervals < 2:
            raise SettingError(f"intervals={intervals}: give at least 2")
        if not len(days):
            raise FeddrmError("no training sample has an event: give the intervals' last days as edges")
        places = torch.arange(1, intervals + 1, device=days.device).double() / intervals
        edges = sorted(set(days.quantile(places, interpolation="higher").long().clamp_min(1).tolist()))
        if len(edges) < 2:
            raise FeddrmError(f"all events are on day {edges[0]}: give the intervals' last days as edges")
        return cls(tuple(edges))

    @property
    def names(self) -> tuple[str, ...]:
        """The intervals in words. Patients that were followed beyond the last one are counted under it."""
        return tuple(f"{start}-{end} days" for start, end in pairwise((0, *self.edges)))

    def outcomes(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the event fell into each interval, and whether the interval counts: bool [N, K] each."""
        days, event = (labels // 2)[:, None], (labels % 2 == 1)[:, None]
        edges = edges_on(self.edges, labels.device)
        here = event & (days > edges[:-1]) & (days <= edges[1:])
        return here, here | (days >= edges[1:])

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        event, counts = self.outcomes(labels)
        bernoulli = F.binary_cross_entropy_with_logits(logits, event.to(logits.dtype), reduction="none")
        return torch.where(counts, bernoulli, 0.0).sum(1)

    def answers(self, logits: Tensor) -> Tensor:
        """The probability to be free of the event at the end of every interval."""
        return F.logsigmoid(-logits).cumsum(-1).exp()

    def risk(self, survival: Tensor) -> Tensor:
        """Minus the expected number of intervals that are survived, [...]: comparable between models."""
        return -survival.sum(-1)

    def class_of(self, labels: Tensor) -> Tensor:
        """The interval in which follow-up ended."""
        edges = edges_on(self.edges, labels.device)
        return torch.bucketize(labels // 2, edges[1:]).clamp_max(len(self.edges) - 1)

    def check(self, where: str, labels: Tensor, classes: Sequence[str]) -> None:
        if len(classes) != len(self.edges):
            raise FeddrmError(f"{where} has {len(classes)} intervals, its task {len(self.edges)}: give as many names")
        if int(labels.min()) < 0:
            raise FeddrmError(f"{where} has a time of {int(labels.min()) // 2} days: give times from 0 up")


def _numbers(name: str, values: ArrayLike | Tensor) -> Tensor:
    """Numbers as a tensor; also those of a series that may have gaps, whose numbers are objects."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind == "O":
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise FeddrmError(f"{name} of type {array.dtype}: give numbers without gaps; of durations, their days")
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))


@lru_cache(maxsize=16)
def edges_on(edges: tuple[int, ...], device: torch.device) -> Tensor:
    """The day before all intervals, then every interval's last day. Kept: a CUDA graph cannot copy from the CPU."""
    return torch.tensor((-1, *edges), device=device)
