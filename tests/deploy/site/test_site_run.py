"""A run on a site: its private slots and its accuracy. tests/deploy/test_parity.py compares its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from deployment import Deployed, play_round
from feddrm.deploy.wire.messages import Message

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_private_slots_are_the_initial_ones_or_those_on_disk(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    play_round(server)
    run = deployment.site("oslo")._run_of(Message({"brief": server.run_spec().as_dict()}, {}))
    initial, trained = run.private_slots(0), run.private_slots(1)
    assert set(initial) == set(trained) != set()
    leaves = dict(run.net.named_parameters())
    for slot in initial:
        assert set(initial[slot]) == set(trained[slot])
        for leaf, value in initial[slot].items():
            assert torch.equal(value, leaves[leaf])
            assert torch.equal(trained[slot][leaf], run.store.load(1)[slot][leaf])
            assert not torch.equal(trained[slot][leaf], value)


def test_the_batches_of_a_round_have_the_samples_of_a_few_subjects_at_least(deployed: Make) -> None:
    """They are drawn by samples: at worst they are all of the subjects that have most."""
    deployment = deployed(few=True, router=False, training={"batch_size": 4, "local_steps": 3})
    server = deployment.server()
    run = deployment.site("oslo")._run_of(Message({"brief": server.run_spec().as_dict()}, {}))
    assert run.subjects_of_round(1) == 12
    sizes = [3, 8, 1, 4, 7, 40]
    for many, few in ((40, 1), (41, 2), (48, 2), (49, 3), (62, 5), (63, 6), (99, 6)):
        train = run.client.train
        subject = torch.arange(6).repeat_interleave(torch.tensor(sizes))
        own = replace(train, x=train.x[:1].expand(63, 6), y=train.y[:1].expand(63), subject=subject)
        run.client = replace(run.client, train=own)
        run.schedule = replace(run.schedule, plan=replace(run.schedule.plan, batch_size=many, local_steps=1))
        assert run.subjects_of_round(1) == few


def test_accuracy_counts_the_test_samples_that_the_sites_own_model_gets_right(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    state = play_round(server)
    run = deployment.site("oslo")._run_of(Message({"brief": server.run_spec().as_dict()}, {}))
    private = run.private_slots(1)
    model = run.method.serve(state.shared, private)
    with torch.no_grad():
        logits = torch.stack([run.forward(model, run.client.view(x[None])).logits[0] for x in run.client.test.x])
    right = int((logits.argmax(1) == run.client.test.y).sum())
    assert 0 < right < len(run.client.test)
    assert run.accuracy(state.shared, private) == {"right": right, "tested": len(run.client.test)}
