"""Parity: over Flower's messages, every method ends with the same parameters as in one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deployment import Deployed, assert_same, in_one_process
from feddrm.engine import Plan
from feddrm.methods import Method
from feddrm.models import Model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", sorted(name for name in Method.family if not Method.family[name].closed_form))
def test_two_rounds_end_with_the_same_bits_as_in_one_process(method: str, deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(training={"method": method}, router=False)
    deployment.server().go()
    assert not deployment.complaints
    expected = in_one_process(method, Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05))
    assert_same(deployment, expected)
    sent = deployment.server().run.summary()["communication"]
    whole = {way: sent.pop(f"message_bytes_{way}") for way in ("down", "up")}
    assert {"communication": sent} == expected.communication.summary(2)
    assert whole["down"] > sent["bytes_down"]
    assert whole["up"] > sent["bytes_up"], "messages have headers"


def test_settings_of_a_method_and_a_model_reach_the_sites(deployed: Callable[..., Deployed]) -> None:
    method, model = {"name": "feddrm", "lam": 0.4}, {"name": "mlp", "hidden": [9, 7], "branch": 5}
    deployment = deployed(training={"method": method, "model": model}, router=False)
    deployment.server().go()
    plan = Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05)
    chosen = Model.make("mlp", hidden=(9, 7), branch=5)
    assert_same(deployment, in_one_process(Method.make("feddrm", lam=0.4), plan, model=chosen))
    with pytest.raises(AssertionError):
        assert_same(deployment, in_one_process(Method.make("feddrm", lam=0.5), plan, model=chosen))
