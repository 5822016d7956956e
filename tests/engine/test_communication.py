"""What a training sends, against closed forms of a network whose parameters are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from feddrm.data import Federation
from feddrm.engine import (
    Plan,
    RoundSchedule,
    State,
    federate,
    first_state,
    functional,
    load_state,
    participants,
    save_state,
)
from feddrm.engine.communication import Communication, Sent
from feddrm.methods import FedAS, FedAvg, FedAvgFT, FedBABU, FedDRM, FedPAC, FedRep, Local, Method
from feddrm.models import Mlp, Net

CLIENTS, CLASSES, FEATURES = 4, 2, 5
TRUNK, PROJECT, HEAD = 3 * 5 + 5 + 2 * 5, 5 * 4 + 4 + 2 * 4, 4 * CLASSES + CLASSES
BODY, CLIENT_BRANCH = TRUNK + PROJECT, 5 * 4 + 4 + 2 * 4 + 4 * CLIENTS + CLIENTS
WHOLE = BODY + HEAD
PLAN = Plan(rounds=4, local_steps=2, batch_size=8, lr=0.1, seed=5)


def net_of(method: Method) -> Net:
    return Mlp(hidden=(5,), branch=4).build((3,), CLASSES, CLIENTS if method.client_branch else None)


def start(method: Method, net: Net) -> State:
    return first_state(method, {leaf: value.detach() for leaf, value in net.named_parameters()}, CLIENTS)


def played(
    method: Method, federation: Federation, plan: Plan = PLAN, state: State | None = None, rounds: int | None = None
) -> State:
    """The state after ``rounds`` more rounds, or after all."""
    net = net_of(method)
    state = start(method, net) if state is None else state
    results = federate(RoundSchedule(method, plan, CLIENTS), functional(net), federation, state)
    for _, result in zip(range(plan.rounds - state.round if rounds is None else rounds), results, strict=False):
        state = result.state
    return state


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        (FedAvg(), WHOLE),
        (FedRep(), BODY),
        (FedDRM(), BODY + CLIENT_BRANCH),
        (Local(), 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_every_client_gets_and_sends_the_shared_leaves_in_every_round(
    method: Method, numbers: int, federation: Federation
) -> None:
    each, messages = 4 * numbers, CLIENTS * PLAN.rounds
    state = played(method, federation)
    assert state.communication.stages == {
        "train": Sent(PLAN.rounds, messages, messages, messages * each, messages * each)
    }
    entry = state.communication.summary(PLAN.rounds)["communication"]
    assert (entry["bytes_down"], entry["bytes_up"], entry["bytes_total"]) == (16 * each, 16 * each, 32 * each)
    (stage,) = entry["stages"].values()
    assert (stage["bytes_per_download"], stage["bytes_per_upload"]) == (each, each)


@pytest.mark.parametrize(("method", "numbers"), [(FedAvgFT(tuning=1), WHOLE), (FedBABU(tuning=1), BODY)])
def test_clients_that_tune_alone_send_nothing(method: Method, numbers: int, federation: Federation) -> None:
    """The server sends them the shared leaves all the same, as a deployed one does."""
    each = 4 * numbers
    assert played(method, federation).communication.stages == {
        "train": Sent(3, 12, 12, 12 * each, 12 * each),
        "tune": Sent(1, 4, 4, 4 * each, 0),
    }


def test_statistics_travel_beside_the_leaves(federation: Federation) -> None:
    """The trace of FedAS is one float."""
    communication = played(FedAS(variant="original"), federation).communication
    assert communication.stages == {"train": Sent(4, 16, 16, 16 * 4 * BODY, 16 * (4 * BODY + 4))}


def test_what_one_client_is_sent_may_change_from_round_to_round(federation: Federation) -> None:
    """FedPAC: from round 2 on a client gets its mixture of heads and the prototypes, with a byte for every class."""
    statistics = 2 * (CLASSES * FEATURES + CLASSES) + 1
    number = 8  # of the client, int64
    up = 4 * (WHOLE + statistics) + number
    first = 4 * BODY + number
    later = first + 4 * (HEAD + CLASSES * FEATURES) + CLASSES
    communication = played(FedPAC(variant="original"), federation).communication
    assert communication.stages == {"train": Sent(4, 16, 16, 4 * first + 12 * later, 16 * up)}


def test_a_client_that_drops_out_was_sent_the_leaves_and_sends_none(federation: Federation) -> None:
    plan = Plan(rounds=6, local_steps=1, batch_size=8, participation=0.75, dropout=0.5, seed=5)
    drawn = [participants(plan, CLIENTS, number) for number in range(1, 7)]
    asked, answered = (sum(len(clients) for clients in part) for part in zip(*drawn, strict=True))
    assert asked == 18 > answered > 0
    assert any(not clients for _, clients in drawn), "a round without any answer"
    each = 4 * WHOLE
    communication = played(FedAvg(), federation, plan).communication
    assert communication.stages == {"train": Sent(6, asked, answered, asked * each, answered * each)}


def test_numbers_of_double_precision_take_eight_bytes(federation: Federation) -> None:
    net = net_of(FedAvg()).double()
    schedule = RoundSchedule(FedAvg(), PLAN, CLIENTS)
    (after, *_) = schedule.communication(start(FedAvg(), net), [dict(net.named_parameters())]).stages.values()
    assert after == Sent(1, CLIENTS, 1, CLIENTS * 8 * WHOLE, 8 * WHOLE)


def test_a_resumed_training_counts_every_round_once(federation: Federation, tmp_path: Path) -> None:
    plan = Plan(rounds=4, local_steps=2, batch_size=8, participation=0.5, dropout=0.3, seed=5)
    save_state(tmp_path / "state", played(FedAvgFT(tuning=2), federation, plan, rounds=3))
    halfway = load_state(tmp_path / "state")
    assert sum(sent.rounds for sent in halfway.communication.stages.values()) == 3
    resumed = played(FedAvgFT(tuning=2), federation, plan, halfway)
    assert resumed.communication == played(FedAvgFT(tuning=2), federation, plan).communication


def test_nothing_is_said_of_a_training_that_was_not_counted_from_its_first_round(federation: Federation) -> None:
    """An older version began it, or it had no rounds."""
    begun = played(FedAvg(), federation, rounds=2)._replace(communication=Communication())
    assert played(FedAvg(), federation, state=begun).communication.summary(PLAN.rounds) == {}
    assert Communication().summary(0) == Communication().totals(0) == {}


def test_a_checkpoint_keeps_it_as_plain_numbers() -> None:
    communication = Communication().after("train", [8, 8], [4]).after("tune", [8], [0]).after("train", [], [])
    assert Communication.load(json.loads(json.dumps(communication.saved()))) == communication
    stages = communication.summary(3)["communication"]["stages"]
    assert stages["train"] == {
        "rounds": 2, "downloads": 2, "uploads": 1, "bytes_down": 16, "bytes_up": 4,
        "bytes_per_download": 8.0, "bytes_per_upload": 4.0,
    }  # fmt: skip
    assert Communication().after("train", [], []).summary(1)["communication"]["stages"]["train"][
        "bytes_per_upload"
    ] is None  # fmt: skip


def test_a_checkpoint_of_an_older_version_has_none(federation: Federation, tmp_path: Path) -> None:
    """It lacks the key: its place is written over by another one."""
    save_state(tmp_path / "state", played(FedAvg(), federation, rounds=1))
    content = (tmp_path / "state").read_bytes()
    assert content.count(b"communication") == 1
    (tmp_path / "state").write_bytes(content.replace(b"communication", b"another thing"))
    assert load_state(tmp_path / "state").communication == Communication()


def test_sizes_are_counted_without_reading_a_value() -> None:
    """Tensors without memory have none: so nothing waits for a GPU."""
    schedule = RoundSchedule(FedAvg(), PLAN, CLIENTS)
    leaves = {"w": torch.empty(3, 4, dtype=torch.bfloat16, device="meta")}
    sent = schedule.communication(State(0, leaves, ()), [leaves])
    assert sent.stages == {"train": Sent(1, 4, 1, 4 * 24, 24)}
