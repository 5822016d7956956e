"""One round of federated training, one client after another or side by side on CPU cores."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from feddrm.data import Batch, Federation, Participant, batch, draw_for
from feddrm.engine.client_update import Update, client_update
from feddrm.engine.schedule import RoundResult, RoundSchedule, State
from feddrm.errors import UnmaskedError
from feddrm.methods import Forward, Method, Slots, Tensors
from feddrm.threads import Map

UNMASKED = (
    "{name}: its loss or statistics depend on places of a batch without a sample, so the figures would be wrong: take "
    "means by feddrm.methods.losses.masked_mean(values, batch.mask), and multiply what you add up by batch.mask"
)


def play_round(
    schedule: RoundSchedule, net: Forward, federation: Federation, state: State, spread: Map = map
) -> RoundResult:
    """Play the round after ``state``. Weights are renormalised over the clients that answer."""
    method, number = schedule.method, state.round + 1
    answering = schedule.answering(number)

    def train(client: int) -> Update:
        received = method.send(state.shared, client)
        participant = Participant.of(federation, client)
        return train_client(schedule, net, participant, received, state.private[client], number)

    updates = list(spread(train, answering))
    shared, private, loss = state.shared, {}, None
    if updates:
        sizes = federation.sizes[list(answering)].double()
        weights = sizes / sizes.sum()
        shared = method.aggregate(state.shared, [update.upload for update in updates], weights)
        private = {client: update.private for client, update in zip(answering, updates, strict=True)}
        loss = float(weights @ torch.stack([update.loss for update in updates]).double().cpu())
    sent = schedule.communication(state, [update.upload for update in updates])
    after = state.after(shared, private, sent)
    return RoundResult(after, schedule.stage(number), schedule.plan.rate(number), loss, answering)


def train_client(
    schedule: RoundSchedule,
    net: Forward,
    participant: Participant,
    received: Tensors,
    private: Slots,
    number: int,
) -> Update:
    """One client's work in round ``number``: a function of its own samples and of what it received.

    The result does not depend on where this runs: in the server's process, in a thread, or at a site.
    """
    client, plan, stage = participant.client, schedule.plan, schedule.stage(number)
    device = client.train.x.device

    def batches(phase: int, steps: int) -> Iterator[Batch]:
        drawn = draw_for(
            participant, steps=steps, batch_size=plan.batch_size, seed=plan.seed, round=number, phase=phase
        ).to(device)
        return (batch(client, participant.number, client.train, drawn, step) for step in range(steps))

    streams = [batches(k, phase.steps) for k, phase in enumerate(schedule.method.phases(stage))]
    sgd = plan.sgd(torch.tensor(plan.rate(number), device=device))
    return client_update(schedule.method, net, received, private, streams, stage, sgd)


def is_untested(method: Method) -> bool:
    """Whether a method is somebody's own: the tests of the package check its methods, nobody has checked this one."""
    return type(method).__module__.split(".")[0] != "feddrm"


def check_mask(schedule: RoundSchedule, net: Forward, participant: Participant, state: State) -> None:
    """Refuse a method whose result depends on the places of a batch that hold no sample.

    Rounds are played twice on one sample of the client, with something else in the other place of the batch. In round 1
    all models are equal, and terms between them vanish. So it is followed by round 2 of a client that was absent from
    round 1, and by the last round of one that was not.
    """
    client, method, who = participant.client, schedule.method, participant.number
    x, y = client.view(client.train.x[:1], None), client.train.y[:1]
    number, mask = torch.full_like(y, who), torch.ones_like(y, dtype=torch.bool)

    def play(shared: Tensors, private: Slots, round: int, other: torch.Tensor) -> Update:
        one = Batch(torch.cat([x, other]), y.repeat(2), number.repeat(2), torch.cat([mask, ~mask]))
        stage, rate = schedule.stage(round), torch.tensor(schedule.plan.rate(round), device=x.device)
        streams = [[one] for _ in method.phases(stage)]
        return client_update(method, net, method.send(shared, who), private, streams, stage, schedule.plan.sgd(rate))

    rows = client.view(client.train.x[:100], None)
    farthest = (rows - x).flatten(1).abs().sum(1).argmax()  # a sample: a network may not read just any numbers
    unlike = 0.5 - x if rows[farthest].equal(x[0]) else rows[farthest][None]

    def checked(shared: Tensors, private: Slots, round: int) -> Update:
        first, second = play(shared, private, round, x), play(shared, private, round, unlike)
        try:
            torch.testing.assert_close(tuple(first), tuple(second), rtol=1e-3, atol=1e-5, equal_nan=True)
        except AssertionError as error:
            raise UnmaskedError(UNMASKED.format(name=method.name)) from error
        return first

    private, rounds = state.private[who], schedule.plan.rounds
    update = checked(state.shared, private, 1)
    weights = torch.full((schedule.seats,), 1 / schedule.seats, dtype=torch.float64)
    shared = method.aggregate(state.shared, [update.upload] * schedule.seats, weights)
    checked(shared, private, min(2, rounds))
    checked(shared, update.private, rounds)
