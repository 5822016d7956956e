"""FedDRM: its loss in closed form, and what travels."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from feddrm.engine import Update, client_update, functional
from feddrm.methods import FedDRM, FedDRMFT, Stage
from feddrm.models import Mlp, is_client_branch, is_head

from .one_client import CLASSES, COLUMNS, SGD, batches, close, optimised

CLIENTS = 4
NET = Mlp(hidden=(7,), branch=6).build((COLUMNS,), CLASSES, CLIENTS, seed=1).double()
LEAVES = {leaf: value.detach() for leaf, value in NET.named_parameters()}


@pytest.mark.parametrize("lam", [0.1, 0.9, 1.0])
def test_the_loss_weighs_classes_against_clients(lam):
    (batch,) = batches(1)
    batch = batch._replace(client=torch.full_like(batch.y, 2), mask=torch.arange(len(batch.y)) < 5)
    (phase,) = FedDRM(lam=lam).phases(Stage(3))
    assert phase.steps == 3
    out = NET(batch.x[:5])
    wanted = lam * cross_entropy(out.logits, batch.y[:5]) + (1 - lam) * cross_entropy(
        out.client_logits, batch.client[:5]
    )
    torch.testing.assert_close(phase.loss(functional(NET), {"model": LEAVES}, batch), wanted, rtol=0, atol=1e-14)


def test_the_class_head_is_private_and_the_client_branch_travels():
    shared, private = FedDRM().start(LEAVES)
    assert set(private["model"]) == {leaf for leaf in LEAVES if is_head(leaf)}
    assert {leaf.partition(".")[0] for leaf in shared} == {"trunk", "project", "client_project", "client_head"}
    assert FedDRM().global_model(shared) is None


def worked(method: FedDRM, stage: Stage) -> Update:
    """One client's round of three steps, from the start."""
    return client_update(method, functional(NET), *method.start(LEAVES), [batches(3)], stage, SGD)


def test_before_tuning_feddrmft_is_feddrm():
    one, other = (worked(method, Stage(3)) for method in (FedDRM(), FedDRMFT()))
    close(one.upload, other.upload, atol=0)
    close(one.private["model"], other.private["model"], atol=0)


def test_tuning_is_plain_training_of_all_but_the_client_branch():
    tuned = worked(FedDRMFT(), Stage(3, tuning=True))
    net = Mlp(hidden=(7,), branch=6).build((COLUMNS,), CLASSES, CLIENTS, seed=1).double()
    answering = [leaf for leaf in LEAVES if not is_client_branch(leaf)]
    optimised(net, answering, batches(3))
    assert tuned.upload == {}
    close(tuned.private["model"], {leaf: net.get_parameter(leaf) for leaf in answering}, atol=1e-13)
    shared, _ = FedDRMFT().start(LEAVES)
    close(FedDRMFT().serve(shared, tuned.private), {**LEAVES, **tuned.private["model"]}, atol=0)
