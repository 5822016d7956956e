"""The loop over rounds: a run is a function of its state and seed; engines are chosen by name."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from feddrm.data import Federation
from feddrm.engine import (
    Plan,
    RoundResult,
    RoundSchedule,
    State,
    engine_for,
    federate,
    first_state,
    functional,
    participants,
)
from feddrm.engine.cuda_graph import GraphEngine
from feddrm.errors import SettingError
from feddrm.methods import FedAvg, FedAvgFT, Method, Phase, Stage
from feddrm.methods.losses import classify
from feddrm.models import Mlp

PLAN = Plan(rounds=4, local_steps=2, batch_size=8, lr=0.1, seed=5)
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


def test_results_carry_rate_and_stage_of_their_round(federation):
    plan = dataclasses.replace(PLAN, rounds=8)
    played = play(federation, plan, method=FedAvgFT(tuning=4))
    assert [p.lr for p in played] == [0.05 * (1 + math.cos(math.pi * t / 8)) for t in range(8)]
    assert [p.stage.tuning for p in played] == [False] * 4 + [True] * 4
    assert all(p.stage.steps == 2 for p in played)


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


@pytest.mark.parametrize("workers", [2, 5])
def test_clients_side_by_side_give_the_same_bits(federation, workers):
    same(play(federation, workers=workers)[-1].state, play(federation)[-1].state)


# --- engines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "device", "chosen"),
    [("auto", "cpu", "sequential"), ("sequential", "cpu", "sequential"), ("auto", "cuda", "graph"),
     ("auto", "cuda:1", "graph"), ("graph", "cuda", "graph"), ("sequential", "cuda", "sequential")],
)  # fmt: skip
def test_the_engine_follows_the_device(engine, device, chosen):
    assert engine_for(engine, device) == chosen


@pytest.mark.parametrize(
    ("engine", "device", "message"),
    [
        ("grph", "cuda", r"unknown engine 'grph'; did you mean 'graph'\? \(known: auto, sequential, graph\)"),
        ("auto", "gpu", r"unknown device 'gpu'.* \(known: cpu, cuda\)"),
        ("auto", "meta", r"unknown device 'meta'"),
        ("graph", "cpu", r"engine 'graph' needs a GPU, not cpu: use --device cuda, or --engine sequential"),
    ],
)
def test_an_impossible_engine_is_refused(engine, device, message):
    with pytest.raises(SettingError, match=message):
        engine_for(engine, device)


class Growing(FedAvg):
    """The weight of the loss grows with the round."""

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        share = stage.round / stage.rounds
        return (Phase(stage.steps, lambda net, slots, batch: share * classify(net, slots, batch)),)


def test_a_method_that_reads_the_round_trains_by_it(federation):
    assert (
        not play(federation, method=Growing())[0]
        .state.shared["head.bias"]
        .equal(play(federation)[0].state.shared["head.bias"])
    )


def test_the_graph_engine_does_not_replay_a_method_that_reads_the_round(federation, monkeypatch):
    """Without a GPU: what a capture would call is called, and no graph must be used."""
    captures = []

    def capture(engine: GraphEngine, stage: Stage, *_: object) -> None:
        captures.append(engine.method.phases(stage))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(GraphEngine, "_capture", capture)
    same(play(federation, method=Growing(), engine="graph")[-1].state, play(federation, method=Growing())[-1].state)
    assert len(captures) == 1
    with pytest.raises(AttributeError):  # the graph of another method, here None, would be used
        play(federation, engine="graph")
