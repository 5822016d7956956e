"""One round: the weighted mean of the clients' updates, and one client's work without a federation."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext

import pytest
import torch

from feddrm.data import Federation, Participant, batch, draw_for
from feddrm.engine import (
    Plan,
    RoundSchedule,
    client_update,
    first_state,
    functional,
    play_round,
    train_client,
)
from feddrm.engine.rounds import check_mask
from feddrm.methods import Ditto, FedAvg, FedAvgFT, FedRep, Phase, Statistics
from feddrm.methods.losses import classify, masked_mean
from feddrm.models import Mlp, Net
from refusal import refused

PLAN = Plan(rounds=4, local_steps=2, batch_size=8, lr=0.1, seed=5)
NET = Mlp(hidden=(5,), branch=4).build((3,), 2)
LEAVES = {leaf: p.detach() for leaf, p in NET.named_parameters()}


def test_a_round_is_the_weighted_mean_of_the_updates(federation):
    state = first_state(FedAvg(), LEAVES, 4)
    first = play_round(RoundSchedule(FedAvg(), PLAN, 4, [(0, 2)] * 4), functional(NET), federation, state)
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


@pytest.mark.parametrize("method", [FedAvg(), Ditto(), FedRep()], ids=lambda method: method.name)
def test_a_client_trains_alone_as_it_does_in_a_round(federation, method):
    """The other clients' samples are not there: a site has none of them."""
    schedule, state = RoundSchedule(method, PLAN, 4, [(2,)] * 4), first_state(method, LEAVES, 4)
    after = play_round(schedule, functional(NET), federation, state).state
    participant = Participant(2, federation.clients[2], federation.crop)
    received = method.send(state.shared, 2)
    update = train_client(schedule, functional(NET), participant, received, state.private[2], 1)
    assert all(value.equal(after.shared[leaf]) for leaf, value in update.upload.items())
    assert update.private.keys() == after.private[2].keys()
    for slot, leaves in update.private.items():
        assert all(value.equal(after.private[2][slot][leaf]) for leaf, value in leaves.items())


def test_the_number_of_a_client_keys_its_batches(federation):
    schedule, state = RoundSchedule(FedAvg(), PLAN, 4), first_state(FedAvg(), LEAVES, 4)
    losses = [
        float(
            train_client(
                schedule, functional(NET), Participant(number, federation.clients[0]), LEAVES, state.private[0], round
            ).loss
        )
        for number, round in ((0, 1), (1, 1), (0, 2), (0, 1))
    ]
    assert len(set(losses)) == 3
    assert losses[0] == losses[3]


def test_a_round_without_answers_changes_nothing(federation):
    state = first_state(FedAvg(), LEAVES, 4)
    result = play_round(RoundSchedule(FedAvg(), PLAN, 4, [()]), functional(NET), federation, state)
    assert result.loss is None
    assert result.answered == ()
    assert result.state.round == 1
    assert result.state.shared is state.shared
    assert result.state.private == state.private


def plain_mean(net, slots, batch):
    return torch.nn.functional.cross_entropy(net(slots["model"], batch.x).logits, batch.y)


def plain_sum(net, slots, batch):
    return {"mean": net(slots["model"], batch.x).features.sum(0)}


@pytest.mark.parametrize(
    "phases", [(Phase(2, plain_mean),), (Statistics(2, plain_sum, "sums"), Phase(2, classify))], ids=["loss", "sums"]
)
def test_a_method_that_counts_places_without_a_sample_is_refused(federation, phases):
    """The last batch of a shuffle is short: one sample would count for all of its empty places."""

    class Careless(FedAvg):
        def phases(self, stage):
            return phases

    for method, careless in ((FedAvg(), False), (FedRep(), False), (Careless(), True)):
        schedule, state = RoundSchedule(method, PLAN, 4), first_state(method, LEAVES, 4)
        for number in (0, 3):
            arguments = schedule, functional(NET), Participant.of(federation, number), state
            if not careless:
                check_mask(*arguments)
                continue
            with refused("depend on places of a batch without a sample", "masked_mean(values, batch.mask)"):
                check_mask(*arguments)


def far_from(slot):
    def loss(net, slots, batch):
        gap = net(slots["model"], batch.x).features - net(slots[slot], batch.x).features
        return classify(net, slots, batch) + gap.square().mean()

    return loss


class AgainstReceived(FedAvg):
    """A term against the last local model: zero as long as all models are equal, its gradient too."""

    def phases(self, stage):
        return (Phase(1, far_from("last")),)

    def start(self, leaves):
        return leaves, {"last": leaves}

    def begin(self, received, private):
        return {**private, "model": received}

    def finish(self, slots, stage):
        return slots["model"], {"last": slots["model"]}


class AgainstOwn(FedAvg):
    """A term against sums that there are from round 2 on."""

    def phases(self, stage):
        def loss(net, slots, batch):
            own = slots["own"]["features"] if "own" in slots else 0
            gap = (net(slots["model"], batch.x).features - own).square().mean(1)
            return classify(net, slots, batch) + (gap.mean() if "own" in slots else masked_mean(gap, batch.mask))

        def sums(net, slots, batch):
            return {"features": (net(slots["model"], batch.x).features * batch.mask[:, None]).sum(0)}

        return Phase(1, loss), Statistics(1, sums, "own")


class WhileTuning(FedAvgFT):
    def phases(self, stage):
        return (Phase(1, plain_mean if stage.tuning else classify),)


@pytest.mark.parametrize(
    "method", [AgainstReceived(), AgainstOwn(), WhileTuning()], ids=lambda method: type(method).__name__
)
def test_places_without_a_sample_that_count_in_later_rounds_are_found_before_the_first(federation, method):
    schedule, state = RoundSchedule(method, PLAN, 4), first_state(method, LEAVES, 4)
    with refused("depend on places of a batch without a sample"):
        check_mask(schedule, functional(NET), Participant.of(federation, 0), state)


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(5, 4)

    def forward(self, x):
        return self.table(x.long()).mean(1)


def test_a_method_is_tried_on_samples_that_the_network_can_read():
    """Half a token, and one less than zero, are none."""
    net = Net(torch.nn.Sequential(OrderedDict(embedding=Tokens())), (torch.nn.Identity(), torch.nn.Linear(4, 2)))
    leaves = {leaf: p.detach() for leaf, p in net.named_parameters()}
    x, y = torch.arange(60).view(10, 6) % 5, torch.arange(10) % 2
    tokens = Federation.from_arrays({"a": (x, y), "b": (x, y)})
    for method, careless in ((FedAvg(), False), (WhileTuning(), True)):
        arguments = (
            RoundSchedule(method, PLAN, 2),
            functional(net),
            Participant.of(tokens, 0),
            first_state(method, leaves, 2),
        )
        with refused("depend on places of a batch") if careless else nullcontext():
            check_mask(*arguments)
