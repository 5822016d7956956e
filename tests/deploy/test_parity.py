"""Over Flower's messages every method comes to the parameters that it comes to in one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from feddrm.data import load
from feddrm.deploy.server.training import Progress
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.engine import Plan, RoundSchedule, State, federate, first_state, functional
from feddrm.engine.kernels import cpu_kernels
from feddrm.methods import Method
from feddrm.models import Model

from .conftest import NAMES, Deployed


def in_one_process(method: str, plan: Plan, only: list[list[int]] | None = None) -> State:
    federation = load("digits", clients=3, seed=7)
    chosen = Method.make(method)
    net = Model.make("mlp").build(federation.shape, 10, 3 if chosen.client_branch else None, plan.seed)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state, schedule = first_state(chosen, leaves, 3), RoundSchedule(chosen, plan, 3, only)
    with cpu_kernels(net, plan.batch_size):
        for played in federate(schedule, functional(net), federation, state):
            state = played.state
    return state


def assert_same(deployment: Deployed, expected: State) -> None:
    """To the last bit: the same kernels compute, the same sums are added in the same order."""
    progress = Progress.load(deployment.folder / "server" / "runs" / "first" / "checkpoint.safetensors")
    assert progress.round == expected.round
    assert list(progress.shared) == list(expected.shared)
    for leaf, value in expected.shared.items():
        assert torch.equal(progress.shared[leaf], value), f"{leaf}: {(progress.shared[leaf] - value).abs().max()}"
    for number, name in enumerate(NAMES):
        store = PrivateStore(deployment.folder / "sites" / name / "runs" / "first")
        accepted = progress.accepted[name]
        if accepted == 0:
            continue
        private = store.load(accepted)
        assert set(private) == set(expected.private[number])
        for slot, leaves in expected.private[number].items():
            assert set(private[slot]) == set(leaves)
            for leaf, value in leaves.items():
                assert torch.equal(private[slot][leaf], value), f"{name}: {leaf}"


@pytest.mark.parametrize("method", sorted(Method.family))
def test_two_rounds(method: str, deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(training={"method": method}, router=False)
    deployment.server().go()
    assert not deployment.complaints
    expected = in_one_process(method, Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05))
    assert_same(deployment, expected)
