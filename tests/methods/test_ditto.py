"""Ditto: the personal model is pulled to the received one."""

from __future__ import annotations

from feddrm.methods import Ditto, Sgd

from .one_client import LR, batches, close, leaves, slope, work


def test_the_personal_model_is_pulled_to_the_received_one():
    lam, received, own = 0.8, leaves(1), leaves(2)
    upload, kept = work(Ditto(lam=lam), received, {"personal": own}, 4, sgd=Sgd(0.0, 0.0, LR))
    model = received
    for batch in batches(2, seed=0):
        gradient = slope(model, batch)
        model = {leaf: v - LR * gradient[leaf] for leaf, v in model.items()}
    close(upload, model)
    for batch in batches(2, seed=1):
        gradient = slope(own, batch)
        own = {leaf: v - LR * (gradient[leaf] + lam * (v - received[leaf])) for leaf, v in own.items()}
    close(kept["personal"], own)
    assert set(kept) == {"model", "personal"}
    assert kept["model"] == {}
