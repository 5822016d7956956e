"""Rounds: rates, who takes part, what is refused, and that a run is a function of its state and seed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from feddrm.data import Federation, Participant, batch, draw_for
from feddrm.engine import (
    Plan,
    RoundResult,
    RoundSchedule,
    State,
    client_update,
    federate,
    first_state,
    functional,
    participants,
)
from feddrm.errors import SettingError
from feddrm.methods import FedAvg, FedAvgFT, Method
from feddrm.models import Mlp

PLAN = Plan(rounds=4, local_steps=2, batch_size=8, lr=0.1, seed=5)


@pytest.fixture(scope="module")
def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 3, generator=generator), torch.arange(count) % 2

    clients = {"a": 20, "b": 12, "c": 5, "d": 9}
    return Federation.from_arrays(
        {name: samples(count) for name, count in clients.items()}, test={name: samples(2) for name in clients}
    )


NET = Mlp(hidden=(5,), branch=4).build((3,), 2)
LEAVES = {leaf: p.detach() for leaf, p in NET.named_parameters()}


def play(federation: Federation, plan: Plan = PLAN, *, method: Method | None = None, **options) -> list[RoundResult]:
    method = method or FedAvg()
    state = options.pop("state", None) or first_state(method, LEAVES, len(federation))
    schedule = RoundSchedule(method, plan, len(federation), options.pop("only", None))
    return list(federate(schedule, functional(NET), federation, state, **options))


def same(one: State, other: State) -> None:
    assert one.round == other.round
    assert list(one.shared) == list(other.shared)
    assert all(value.equal(other.shared[leaf]) for leaf, value in one.shared.items())
    for mine, theirs in zip(one.private, other.private, strict=True):
        assert {slot: set(leaves) for slot, leaves in mine.items()} == {s: set(leaves) for s, leaves in theirs.items()}
        assert all(v.equal(theirs[slot][leaf]) for slot, leaves in mine.items() for leaf, v in leaves.items())


# --- rates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round", "rate"), [(1, 0.01), (401, 0.005), (601, 1.46e-3), (701, 3.81e-4), (751, 9.6e-5), (800, 3.9e-8)]
)
def test_rates_of_the_paper(round, rate):
    assert Plan().rate(round) == pytest.approx(rate, rel=0.012)  # to the digits it is given with


def test_rates_fall_without_a_restart(federation):
    plan = dataclasses.replace(PLAN, rounds=8)
    played = play(federation, plan, method=FedAvgFT(tuning=4))
    assert [p.lr for p in played] == [0.05 * (1 + math.cos(math.pi * t / 8)) for t in range(8)]
    assert [p.stage.tuning for p in played] == [False] * 4 + [True] * 4
    assert all(p.stage.steps == 2 for p in played)


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


def test_federate_asks_the_drawn_clients(federation):
    plan = dataclasses.replace(PLAN, rounds=12, participation=0.5, dropout=0.5)
    start = first_state(FedAvg(), LEAVES, 4)
    played = play(federation, plan, state=start)
    assert [p.answered for p in played] == [participants(plan, 4, round)[1] for round in range(1, 13)]
    assert {len(p.answered) for p in played} == {0, 1, 2}
    before = start.shared
    for p in played:
        assert (p.loss is None) == (p.answered == ())
        assert (p.state.shared is before) == (p.answered == ())
        before = p.state.shared


def test_only_the_named_clients_answer(federation):
    only = [(0,), (), (2, 3), (1,)]
    played = play(federation, method=FedAvgFT(tuning=0), only=only)
    assert [p.answered for p in played] == only
    assert [p.state.round for p in played] == [1, 2, 3, 4]
    whole = play(federation, only=[(0, 1, 2, 3)] * 4)
    same(whole[-1].state, play(federation)[-1].state)


def test_rounds_are_named_from_one_when_resumed(federation):
    only = [(0,), (1,), (2,), (3,)]
    state = play(federation, only=only)[1].state
    assert [p.answered for p in play(federation, state=state, only=only)] == [(2,), (3,)]


# --- the round itself ---------------------------------------------------------------------------


def test_a_round_is_the_weighted_mean_of_the_updates(federation):
    first = play(federation, only=[(0, 2)] * 4)[0]
    state = first_state(FedAvg(), LEAVES, 4)
    weights = {0: 20 / 25, 2: 5 / 25}
    updates = {}
    for client in weights:
        drawn = draw_for(Participant.of(federation, client), steps=2, batch_size=8, seed=5, round=1, phase=0)
        one = federation.clients[client]
        stream = [batch(one, client, one.train, drawn, step) for step in range(2)]
        updates[client] = client_update(
            FedAvg(), functional(NET), LEAVES, state.private[client], [stream], first.stage, PLAN.sgd(torch.tensor(0.1))
        )
    for leaf in LEAVES:
        wanted = sum(weight * updates[client].upload[leaf].double() for client, weight in weights.items())
        torch.testing.assert_close(first.state.shared[leaf].double(), wanted, rtol=0, atol=1e-6)
    assert first.loss == pytest.approx(sum(w * float(updates[c].loss) for c, w in weights.items()), abs=1e-6)


def test_batches_change_with_round_client_and_phase(federation):
    losses = [p.loss for p in play(federation)]
    assert len(set(losses)) == len(losses)
    assert play(federation)[-1].loss == losses[-1]
    assert play(federation, dataclasses.replace(PLAN, seed=6))[-1].loss != losses[-1]


def test_training_leaves_the_global_generator_alone(federation):
    torch.manual_seed(4)
    wanted = torch.rand(3)
    torch.manual_seed(4)
    play(federation, dataclasses.replace(PLAN, participation=0.5, dropout=0.2))
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("after", [0, 1, 3, 4])
def test_a_run_goes_on_from_any_round(federation, after):
    plan = dataclasses.replace(PLAN, participation=0.5, dropout=0.2)
    method = FedAvgFT(tuning=2)
    whole = play(federation, plan, method=method)
    state = whole[after - 1].state if after else first_state(method, LEAVES, 4)
    rest = play(federation, plan, method=method, state=state)
    assert len(rest) == 4 - after
    for resumed, straight in zip(rest, whole[after:], strict=True):
        same(resumed.state, straight.state)
        assert (resumed.loss, resumed.answered, resumed.lr) == (straight.loss, straight.answered, straight.lr)


def test_rounds_are_played_one_at_a_time(federation):
    schedule = RoundSchedule(FedAvg(), PLAN, 4)
    rounds = federate(schedule, functional(NET), federation, first_state(FedAvg(), LEAVES, 4))
    assert next(rounds).state.round == 1
    assert next(rounds).state.round == 2
    rounds.close()


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
