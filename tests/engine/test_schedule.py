"""The schedule: rates, stages, who takes part, and plans that are refused."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from feddrm.engine import Plan, RoundSchedule, State, first_state, participants
from feddrm.engine.communication import Communication
from feddrm.errors import SettingError
from feddrm.methods import Ditto, FedAvg, FedAvgFT, Stage
from refusal import refused

PLAN = Plan(rounds=4, local_steps=2, batch_size=8, lr=0.1, seed=5)


# --- rates and stages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round", "rate"), [(1, 0.01), (401, 0.005), (601, 1.46e-3), (701, 3.81e-4), (751, 9.6e-5), (800, 3.9e-8)]
)
def test_rates_of_the_paper(round, rate):
    assert Plan().rate(round) == pytest.approx(rate, rel=0.012)  # to the digits it is given with


def test_rates_fall_without_a_restart_for_tuning():
    plan = dataclasses.replace(PLAN, rounds=8)
    assert [plan.rate(t) for t in range(1, 9)] == [0.05 * (1 + math.cos(math.pi * t / 8)) for t in range(8)]


def test_the_rate_rises_in_equal_steps_during_the_warmup():
    plan, cold = dataclasses.replace(PLAN, rounds=8), dataclasses.replace(PLAN, rounds=8, warmup=3)
    factors = [cold.rate(t) / plan.rate(t) for t in range(1, 9)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1], rel=1e-15)


def test_a_plan_without_clip_and_warmup_is_written_as_before():
    assert {"clip", "warmup"}.isdisjoint(PLAN.as_dict())
    assert Plan(**dataclasses.replace(PLAN, clip=2.0, warmup=1).as_dict()) == dataclasses.replace(
        PLAN, clip=2.0, warmup=1
    )


def test_the_last_rounds_tune():
    schedule = RoundSchedule(FedAvgFT(tuning=3), dataclasses.replace(PLAN, rounds=8), 4)
    assert [schedule.stage(t) for t in range(1, 9)] == [Stage(2)] * 5 + [Stage(2, tuning=True)] * 3
    assert not any(RoundSchedule(FedAvg(), PLAN, 4).stage(t).tuning for t in range(1, 5))


def test_sgd_has_the_settings_of_the_plan():
    sgd = Plan(momentum=0.5, weight_decay=0.25).sgd(torch.tensor(0.125))
    assert (sgd.momentum, sgd.weight_decay, float(sgd.lr)) == (0.5, 0.25, 0.125)
    changed = sgd.changed({"lr": 1.0, "momentum": 0.0})
    assert (changed.momentum, changed.weight_decay, float(changed.lr)) == (0.0, 0.25, 1.0)
    assert isinstance(changed.lr, torch.Tensor)


def test_every_client_starts_from_the_same_model():
    leaves = {"trunk.w": torch.ones(2), "head.w": torch.zeros(3)}
    state = first_state(Ditto(), leaves, 3)
    assert state.round == 0
    assert len(state.private) == 3
    assert all(slots["personal"] is leaves for slots in state.private)


@pytest.mark.parametrize(
    ("aggregated", "problem"),
    [
        (None, "gives NoneType: return the shared leaves as a dict"),
        ({"w": torch.ones(3, 2)}, "gives 'w' of shape (3, 2), not (2,): combine the uploads into one"),
    ],
)
def test_a_state_goes_on_with_shared_leaves_only(aggregated, problem):
    with refused(f"the method's aggregate() {problem}"):
        State(0, {"w": torch.ones(2)}, ()).after(aggregated, {}, Communication())


# --- who takes part -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("participation", "clients", "asked"),
    [(1.0, 8, 8), (0.5, 8, 4), (0.25, 10, 3), (0.35, 10, 4), (0.01, 8, 1), (0.3125, 8, 3)],
)
def test_a_fraction_of_the_clients_is_asked(participation, clients, asked):
    plan = Plan(participation=participation)
    for round in range(1, 30):
        found, answered = participants(plan, clients, round)
        assert len(found) == asked
        assert found == answered == tuple(sorted(set(found)))
        assert set(found) <= set(range(clients))


def test_who_is_asked_depends_on_seed_and_round_alone():
    plan = Plan(participation=0.5, dropout=0.3, seed=1)
    drawn = [participants(plan, 10, round) for round in range(1, 40)]
    torch.manual_seed(99)
    other = dataclasses.replace(plan, rounds=5, lr=0.5)
    assert [participants(other, 10, round) for round in range(39, 0, -1)] == drawn[::-1]
    assert len(set(drawn)) > 30
    assert [participants(dataclasses.replace(plan, seed=2), 10, round) for round in range(1, 40)] != drawn


def test_every_client_is_asked_about_equally_often():
    asked = [i for round in range(1, 1001) for i in participants(Plan(participation=0.5), 10, round)[0]]
    counts = torch.bincount(torch.tensor(asked), minlength=10)
    assert counts.sum() == 5000
    assert ((counts - 500).abs() < 80).all()  # five standard deviations


def test_some_that_are_asked_do_not_answer():
    plan = Plan(participation=0.5, dropout=0.3)
    drawn = [participants(plan, 10, round) for round in range(1, 1001)]
    assert all(set(answered) <= set(asked) and list(answered) == sorted(answered) for asked, answered in drawn)
    rate = sum(len(answered) for _, answered in drawn) / 5000
    assert rate == pytest.approx(0.7, abs=0.04)  # six standard deviations
    # Failing is nobody's habit, and being asked does not depend on it.
    assert {i for asked, answered in drawn for i in set(asked) - set(answered)} == set(range(10))
    assert [asked for asked, _ in drawn] == [participants(Plan(participation=0.5), 10, r)[0] for r in range(1, 1001)]


def test_named_clients_answer_instead_of_drawn_ones():
    schedule = RoundSchedule(FedAvg(), PLAN, 4, [[0, 2], [], [1]])
    assert [schedule.answering(t) for t in (1, 2, 3)] == [(0, 2), (), (1,)]
    assert schedule.seats == 2


def test_drawn_clients_answer_and_never_more_than_there_are_seats():
    plan = dataclasses.replace(PLAN, participation=0.5, dropout=0.3)
    schedule = RoundSchedule(FedAvg(), plan, 9)
    assert schedule.seats == 5
    for round in range(1, 50):
        assert schedule.answering(round) == participants(plan, 9, round)[1]
        assert len(schedule.answering(round)) <= schedule.seats


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Plan)])
def test_every_setting_of_a_plan_can_be_refused(field):
    assert any(field == name for name, _ in BAD)


BAD = [
    ("rounds", 0),
    ("local_steps", 0),
    ("batch_size", -1),
    ("lr", 0.0),
    ("lr", -0.1),
    ("lr", math.nan),
    ("lr", math.inf),
    ("momentum", 1.0),
    ("momentum", -0.1),
    ("momentum", math.nan),
    ("weight_decay", -1e-3),
    ("weight_decay", math.nan),
    ("weight_decay", math.inf),
    ("participation", 0.0),
    ("participation", 1.01),
    ("participation", math.nan),
    ("dropout", 1.0),
    ("dropout", -0.1),
    ("dropout", math.nan),
    ("seed", -1),
    ("seed", 2**32),
    ("clip", -1.0),
    ("clip", math.inf),
    ("clip", math.nan),
    ("warmup", -1),
    ("warmup", 800),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_an_impossible_plan_is_refused_in_one_line(field, value):
    with pytest.raises(SettingError) as refusal:
        dataclasses.replace(PLAN, **{field: value}).check()
    message = str(refusal.value)
    assert "\n" not in message
    assert field in message
    assert str(value) in message
    assert ":" in message  # what is wrong, then what to do


@pytest.mark.parametrize(
    "edge", [{}, {"rounds": 1}, {"momentum": 0.0}, {"weight_decay": 0.0}, {"dropout": 0.99}, {"seed": 2**32 - 1}]
)
def test_a_possible_plan_passes(edge):
    dataclasses.replace(Plan(), **edge).check()


def test_a_stage_says_which_round_of_how_many_it_is_and_its_rate() -> None:
    schedule = RoundSchedule(FedAvgFT(tuning=1), Plan(rounds=3, local_steps=2, lr=0.2, warmup=1), 4)
    stages = [schedule.stage(number) for number in (1, 2, 3)]
    assert [(stage.round, stage.rounds, stage.tuning) for stage in stages] == [
        (1, 3, False),
        (2, 3, False),
        (3, 3, True),
    ]
    assert [stage.lr for stage in stages] == [0.1, schedule.plan.rate(2), schedule.plan.rate(3)]
    assert repr(stages[0]) == "Stage(steps=2, tuning=False, round=1, rounds=3, lr=0.1)"
    assert (stages[0] == stages[1], len(set(stages))) == (True, 2)  # one CUDA graph for both
    assert RoundSchedule(FedAvg(), Plan(rounds=0, lr=0.2), 4).stage(1).lr == 0.2  # of a closed form


def test_a_start_without_private_slots_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "start", lambda _, leaves: leaves)
    with refused("fedavg: start() must return two dicts"):
        first_state(FedAvg(), {"head.bias": torch.zeros(2)}, 1)
