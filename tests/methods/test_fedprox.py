"""FedProx: the proximal pull to the received model."""

from __future__ import annotations

from feddrm.methods import FedProxFT, Sgd

from .one_client import LR, batches, close, leaves, slope, work


def test_two_steps_with_the_pull_in_closed_form():
    mu, start = 0.7, leaves()
    first, second = batches(2)
    model, plain = start, Sgd(0.0, 0.0, LR)
    for batch in (first, second):
        gradient = slope(model, batch)
        model = {leaf: v - LR * (gradient[leaf] + mu * (v - start[leaf])) for leaf, v in model.items()}
    upload, _ = work(FedProxFT(mu=mu), start, {"model": {}}, 2, sgd=plain)
    close(upload, model)
    without, _ = work(FedProxFT(mu=0.0), start, {"model": {}}, 2, sgd=plain)
    assert any((without[leaf] - upload[leaf]).abs().max() > 1e-4 for leaf in upload)
