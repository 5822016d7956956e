"""The predictions of all clients' models: the pooled test set of a round, and every model on every query."""

from __future__ import annotations

import torch

from feddrm.data import Federation
from feddrm.engine import first_state
from feddrm.evaluation import predict
from feddrm.runs import resolve
from feddrm.runs.client_predictions import client_models, execution, pooled_test_set
from runs.conftest import SMALL


def test_every_client_predicts_every_test_sample_with_its_own_model(digits: Federation) -> None:
    config = resolve(digits, method="feddrm", **SMALL)
    net = config.build_net(digits)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    start = first_state(config.method, leaves, len(digits))
    own = start.private[0]["model"]
    biased = {"model": {**own, "head.bias": own["head.bias"] + 100 * torch.eye(10)[7]}}
    state = start._replace(private=(start.private[0], biased, start.private[2]))
    test = pooled_test_set(config, digits, round=1)
    assert len(test.x) == sum(len(client.test) for client in digits.clients)
    predictions = predict(net, client_models(config.method, state), test, execution=execution(config))
    assert predictions.logits.shape == (3, len(test.x), 10)
    chosen = predictions.logits.argmax(-1)
    assert (chosen[1] == 7).all()
    assert torch.equal(chosen[0], chosen[2])
    assert not (chosen[0] == 7).all()
