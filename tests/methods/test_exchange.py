"""What every method promises of its exchange: what travels, what stays, and how uploads combine."""

from __future__ import annotations

import itertools

import pytest
import torch

from feddrm.data import Participant, batch, draw_for
from feddrm.engine import RoundSchedule, client_update, functional, play_round
from feddrm.methods import FedPAC, Stage
from feddrm.models import is_head

from .every_method import (
    PLAN,
    ROWS,
    all_rounds,
    every,
    federation,
    leaves_of,
    midway,
    moved,
    network,
    play,
    same,
    stages,
    tensors_in,
    update,
)


@every
def test_only_shared_leaves_and_extras_are_uploaded(row):
    method = row.method
    for stage in stages(method):
        upload = update(method, midway(method), stage=stage).upload
        expected = {leaf for leaf in leaves_of(method) if method.shares(leaf, stage)}
        assert set(upload) == expected | set(method.extras())
        assert not expected & set(method.extras())
        if not row.heads or stage.tuning:
            assert not any(is_head(leaf) for leaf in upload)


@every
def test_uploaded_parts_are_as_documented(row):
    # Written down here once more, so that a slip in shares() does not pass unseen.
    shared = {leaf for leaf in leaves_of(row.method) if row.method.shares(leaf, Stage(1))}
    if row.method.name == "local":
        assert shared == set()
    else:
        assert shared == {leaf for leaf in leaves_of(row.method) if row.heads or not is_head(leaf)}


@every
def test_what_one_client_keeps_reaches_no_other(row):
    method = row.method
    state = all_rounds(method)[-1].state
    common = [*leaves_of(method).values()]
    own = [
        [value for _, value in tensors_in(slots) if value.numel() > 1 and not any(map(value.equal, common))]
        for slots in state.private
    ]
    elsewhere = [*state.shared.values()] if not row.heads else []
    for i, kept in enumerate(own):
        others = elsewhere + [value for j, values in enumerate(own) if j != i for value in values]
        constant = [value for value in kept if value.unique().numel() == 1]  # mixing weights that are still one
        for value in kept:
            if not any(value is c for c in constant):
                assert not any(map(value.equal, others))


@every
def test_a_client_does_not_depend_on_what_others_keep(row):
    method, state = row.method, midway(row.method)
    changed = tuple(
        slots if i == 0 else {slot: {k: moved(v) for k, v in leaves.items()} for slot, leaves in slots.items()}
        for i, slots in enumerate(state.private)
    )
    net = functional(network(method.client_branch))
    schedule = RoundSchedule(method, PLAN, 3, ((0, 1),) * PLAN.rounds)
    for stage in stages(method):
        after = PLAN.rounds - 1 if stage.tuning else state.round
        assert schedule.stage(after + 1) == stage
        one, other = (
            play_round(schedule, net, federation(), state._replace(round=after, private=private)).state.private
            for private in (state.private, changed)
        )
        same(dict(tensors_in(one[0])), dict(tensors_in(other[0])))
        # Of FedPAC's heads the server's mixture counts, not what the client kept.
        if any(state.private[1].values()) and method != FedPAC(variant="original"):
            found = dict(tensors_in(other[1]))
            assert any(not value.equal(found[name]) for name, value in tensors_in(one[1]))  # the change did matter


@every
def test_tuning_does_not_change_the_shared_leaves(row):
    method, rounds = row.method, all_rounds(row.method)
    assert method.tuning_rounds(800) == row.tuning
    tuning = method.tuning_rounds(PLAN.rounds)
    assert [played.stage.tuning for played in rounds] == [False] * (PLAN.rounds - tuning) + [True] * tuning
    assert (tuning > 0) == (row.tuning > 0)
    for before, played in itertools.pairwise(rounds):
        if played.stage.tuning:
            same(before.state.shared, played.state.shared)
            for i in range(3):
                one, other = (method.serve(state.shared, state.private[i]) for state in (before.state, played.state))
                assert not all(value.equal(other[leaf]) for leaf, value in one.items())
        elif before.state.shared:
            assert any(not value.equal(played.state.shared[leaf]) for leaf, value in before.state.shared.items())


@every
def test_a_client_that_does_not_answer_keeps_its_state(row):
    method, state = row.method, midway(row.method)
    answering = [(), (), (0, 2), (), (1,), ()]
    seen = [state, *(played.state for played in play(method, state, only=answering))]
    for before, after in itertools.pairwise(seen):
        here = answering[after.round - 1]
        for i in range(3):
            if i not in here:
                assert after.private[i] is before.private[i]
        if not here:
            same(before.shared, after.shared)
    assert method.aggregate(state.shared, [], torch.zeros(0, dtype=torch.float64)) == state.shared


@every
def test_a_client_alone_is_the_whole_federation(row):
    method, state = row.method, midway(row.method)
    net, stage = functional(network(method.client_branch)), Stage(PLAN.local_steps)
    alone = RoundSchedule(method, PLAN, 3, ((1,),) * PLAN.rounds)
    after = play_round(alone, net, federation(), state).state.shared
    one = federation().clients[1]
    lists = []
    for number, phase in enumerate(method.phases(stage)):
        drawn = draw_for(
            Participant.of(federation(), 1), steps=phase.steps, batch_size=16, seed=7, round=3, phase=number
        )
        lists.append([batch(one, 1, one.train, drawn, step) for step in range(phase.steps)])
    lr = torch.tensor(PLAN.rate(3))
    received = method.send(state.shared, 1)
    upload = client_update(method, net, received, state.private[1], lists, stage, PLAN.sgd(lr)).upload
    leaves = [leaf for leaf in upload if leaf in state.shared and leaf not in method.extras()]
    assert leaves or method.name == "local"
    for leaf in leaves:
        if row.alone:
            torch.testing.assert_close(after[leaf], upload[leaf], rtol=0, atol=1e-14)
        else:
            # In the same direction at least.
            ours, theirs = (v[leaf] - state.shared[leaf] for v in (after, upload))
            assert (ours * theirs).sum() > 0.999 * ours.norm() * theirs.norm()


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.weights])
def test_uploads_are_averaged_by_sample_counts(name):
    method = ROWS[name].method
    state = midway(method)
    uploads = [update(method, state, i).upload for i in (0, 2)]
    weights = torch.tensor([40 / 47, 7 / 47], dtype=torch.float64)
    after = method.aggregate(state.shared, uploads, weights)
    for leaf in uploads[0]:
        if leaf in state.shared and leaf not in method.extras():
            wanted = (40 * uploads[0][leaf] + 7 * uploads[1][leaf]) / 47
            torch.testing.assert_close(after[leaf], wanted, rtol=0, atol=1e-14)


@every
def test_aggregation_is_pure(row):
    method, state = row.method, midway(row.method)
    uploads = [update(method, state, i).upload for i in range(3)]
    given = dict(tensors_in({"shared": state.shared} | {str(i): upload for i, upload in enumerate(uploads)}))
    before = {name: value.clone() for name, value in given.items()}
    weights = federation().weights
    once, again = (method.aggregate(state.shared, uploads, weights) for _ in range(2))
    same(given, before)
    same(once, again)
