"""FedSAM: the gradient is taken at a perturbed model, except while tuning."""

from __future__ import annotations

import math

from feddrm.methods import FedSAMFT, Stage

from .one_client import LR, SGD, batches, close, leaves, slope, work


def test_the_gradient_is_taken_at_the_perturbed_model():
    rho, model, batch = 0.3, leaves(), batches(1)[0]
    gradient = slope(model, batch)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))  # one norm over all leaves
    uphill = slope({leaf: value + rho * gradient[leaf] / norm for leaf, value in model.items()}, batch)
    upload, _ = work(FedSAMFT(rho=rho), model, {"model": {}}, 1)
    wanted = {leaf: value - LR * (uphill[leaf] + SGD.weight_decay * value) for leaf, value in model.items()}
    close(upload, wanted)
    assert any((uphill[leaf] - g).abs().max() > 1e-3 for leaf, g in gradient.items())


def test_tuning_is_plain_sgd():
    (phase,) = FedSAMFT(rho=0.3).phases(Stage(4, tuning=True))
    assert phase.sam_radius == 0.0
