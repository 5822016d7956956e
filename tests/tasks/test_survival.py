"""Survival: labels, masks, the loss by hand and in closed form, curves and risks."""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feddrm.tasks import Survival
from refusal import refused

TASK = Survival((2, 5, 9))


def label(days: int, event: int) -> Tensor:
    return Survival.labels(torch.tensor([days]), torch.tensor([event]))


@pytest.mark.parametrize(
    ("days", "event", "events", "counts"),
    [
        (0, 1, [1, 0, 0], [1, 0, 0]),  # the first day belongs to the first interval
        (2, 1, [1, 0, 0], [1, 0, 0]),  # so does its last day
        (3, 1, [0, 1, 0], [1, 1, 0]),
        (9, 1, [0, 0, 1], [1, 1, 1]),
        (10, 1, [0, 0, 0], [1, 1, 1]),  # after the last edge: all intervals were survived
        (0, 0, [0, 0, 0], [0, 0, 0]),  # censored in an interval: it does not count
        (2, 0, [0, 0, 0], [1, 0, 0]),  # censored on its last day: it was survived whole
        (4, 0, [0, 0, 0], [1, 0, 0]),
        (99, 0, [0, 0, 0], [1, 1, 1]),
    ],
)
def test_which_intervals_count(days: int, event: int, events: list[int], counts: list[int]) -> None:
    happened, counted = TASK.outcomes(label(days, event))
    assert happened.long().tolist() == [events]
    assert counted.long().tolist() == [counts]


def test_the_loss_by_hand() -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    h1, h2, _ = torch.sigmoid(logits)[0].tolist()
    event, censored = (float(TASK.losses(logits, label(4, e))) for e in (1, 0))
    assert event == pytest.approx(-math.log(1 - h1) - math.log(h2), rel=1e-12)
    assert censored == pytest.approx(-math.log(1 - h1), rel=1e-12)
    assert float(TASK.losses(logits, label(1, 0))) == 0.0


@given(st.integers(0, 12), st.integers(0, 1))
def test_masked_intervals_have_no_gradient(days: int, event: int) -> None:
    logits = torch.tensor([[0.3, -0.2, 1.0]], requires_grad=True)
    happened, counted = TASK.outcomes(label(days, event))
    (gradient,) = torch.autograd.grad(TASK.losses(logits, label(days, event)).sum(), logits)
    expected = torch.where(counted, torch.sigmoid(logits.detach()) - happened.float(), 0.0)
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_a_bias_alone_reproduces_kaplan_and_meier() -> None:
    """With an edge at every event time, the fitted hazards are events by patients at risk."""
    days = torch.tensor([1, 1, 2, 2, 3, 4, 4, 5, 6, 6, 8])
    event = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0])
    times = sorted(set(days[event == 1].tolist()))
    task, labels = Survival(tuple(times)), Survival.labels(days, event)
    bias = torch.zeros(len(times), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([bias], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = task.losses(bias.expand(len(days), -1), labels).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    at_risk = torch.tensor([int((days >= t).sum()) for t in times])
    died = torch.tensor([int(((days == t) & (event == 1)).sum()) for t in times])
    kaplan_meier = (1 - died.double() / at_risk).cumprod(0)
    assert torch.allclose(task.answers(bias.detach()), kaplan_meier, atol=1e-6)


def test_curves_fall_and_risk_is_minus_their_sum() -> None:
    curve = TASK.answers(torch.tensor([[0.0, 0.0, 0.0], [-50.0, 50.0, 0.0]], dtype=torch.float64))
    assert torch.allclose(curve[0], torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64))
    assert torch.allclose(TASK.risk(curve), torch.tensor([-0.875, -1.0], dtype=torch.float64))


def test_edges_by_quantiles_of_the_events_alone() -> None:
    days, event = torch.tensor([1, 2, 3, 4, 100, 200]), torch.tensor([1, 1, 1, 1, 0, 0])
    task = Survival.by_quantiles(Survival.labels(days, event), 2)
    assert task.edges == (3, 4)
    assert task.names == ("0-3 days", "3-4 days")
    assert task.class_of(Survival.labels(days, event)).tolist() == [0, 0, 0, 1, 1, 1]


def test_what_cannot_be() -> None:
    with refused("edges=[5, 2]: give the last days of two intervals or more, in order"):
        Survival((5, 2))
    with refused("intervals=1: give at least 2"):
        Survival.by_quantiles(label(3, 1), 1)
    with refused("no training sample has an event"):
        Survival.by_quantiles(label(3, 0), 4)
    with refused("all events are on day 3"):
        Survival.by_quantiles(label(3, 1), 4)
    with refused("here has a time of -3 days: give times from 0 up"):
        TASK.check("here", torch.tensor([-5]), TASK.names)
    with refused("here has 2 intervals, its task 3"):
        TASK.check("here", label(3, 1), ("a", "b"))


def test_labels_of_arrays_and_frames_are_those_of_tensors() -> None:
    days, event = [3.7, 0.0, 12.0], [True, False, True]
    want = [7, 0, 25]
    frame = pandas.DataFrame({"days": days, "event": event}, index=[5, 6, 7])
    for form in (list, np.array, torch.tensor):
        assert Survival.labels(form(days), form(event)).tolist() == want
    assert Survival.labels(frame["days"], frame["event"]).tolist() == want
    gaps_allowed = frame.astype({"days": "Float64", "event": "boolean"})
    assert Survival.labels(gaps_allowed["days"], gaps_allowed["event"]).tolist() == want


def test_times_that_are_no_numbers_are_refused() -> None:
    with refused("days of type timedelta64[D]: give numbers without gaps; of durations, their days"):
        Survival.labels(np.array([5, 6], dtype="timedelta64[D]"), [1, 0])
    with refused("event of type <U3: give numbers"):
        Survival.labels([5, 6], ["yes", "no"])
    with refused("days[1] is nan: give times from 0 up, or leave the patient out"):
        Survival.labels(pandas.Series([5, None], dtype="Int64"), [1, 0])


@pytest.mark.parametrize(
    ("days", "event", "message"),
    [
        ([1.0, math.nan], [0, 1], "days[1] is nan: give times from 0 up"),
        ([-3, 1], [0, 1], "days[0] is -3"),
        ([1, 2], [1, 2], "event[1] is 2: give 1 if the event was seen, else 0"),
        ([1, 2], [math.nan, 1], "event[0] is nan"),
        ([1, 2], [1], "days of shape (2,), events of (1,)"),
    ],
)
def test_times_and_events_that_cannot_be_are_refused(days: list[float], event: list[float], message: str) -> None:
    """A missing time was an event on day 0, and event 2 a censored day more."""
    with refused(message):
        Survival.labels(days, event)
