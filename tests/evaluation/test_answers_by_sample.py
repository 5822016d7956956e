"""AnswersBySample: made part by part, they give the figures of all predictions, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from feddrm.data import Federation, load
from feddrm.evaluation import (
    AnswersBySample,
    Predictions,
    collapsed_share,
    evaluate,
    own_answers,
    per_client,
    pooled_queries,
    predict,
    predict_parts,
    votes,
)
from feddrm.models import Mlp
from feddrm.tasks import Survival


def made(task: Survival | None = None) -> tuple[Predictions, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    clients, samples, classes = 5, 40, 4
    logits, head = (
        torch.randn(clients, samples, classes, generator=generator),
        torch.randn(samples, clients, generator=generator),
    )
    origin = torch.arange(samples) % clients
    labels = torch.randint(0, 8 if task else classes, (samples,), generator=generator)
    predictions = Predictions(logits, labels, origin, head, logits.mean(0))
    return predictions._replace(task=task) if task else predictions, torch.arange(1.0, clients + 1)


@pytest.mark.parametrize("task", [None, Survival((1, 2, 3, 4))])
def test_joined_parts_give_the_figures_of_the_whole(task: Survival | None) -> None:
    predictions, weights = made(task)
    parts = []
    for rows in torch.arange(40).split(7):
        parts.append(
            predictions._replace(
                logits=predictions.logits[:, rows],
                labels=predictions.labels[rows],
                origin=predictions.origin[rows],
                client_logits=predictions.client_logits[rows],
                global_logits=predictions.global_logits[rows],
            )
        )
    joined = AnswersBySample.join([AnswersBySample.of(part, weights) for part in parts], 40)
    names = list("abcde")
    assert evaluate(joined, weights) == evaluate(predictions, weights)
    assert per_client(joined, names, weights) == per_client(predictions, names, weights)
    if task is None:
        assert votes(joined) == votes(predictions)
        assert collapsed_share(joined) == collapsed_share(predictions)
        assert torch.equal(own_answers(joined), own_answers(predictions))


def test_predictions_part_by_part_are_those_of_one_pass() -> None:
    digits: Federation = load("digits", clients=3, seed=0)
    net = Mlp(hidden=(8,), branch=4).build(digits.shape, 10, 3, 0)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    models = [{**leaves, "head.bias": leaves["head.bias"] + i * torch.arange(10)} for i in range(3)]
    test = pooled_queries(digits, crop=False, seed=0, round=1)
    given = {"client_branch": leaves, "global_model": leaves}
    whole = predict(net, models, test, **given)
    parts = list(predict_parts(net, models, test, 512, **given))
    assert len(parts) == -(-len(test.labels) // 512) > 1
    assert torch.equal(torch.cat([part.logits for part in parts], dim=1), whole.logits)
    for field in ("labels", "origin", "client_logits", "global_logits"):
        assert torch.equal(torch.cat([getattr(part, field) for part in parts]), getattr(whole, field))


def test_the_test_set_of_some_clients_is_their_part_of_the_pooled_one(images: Federation) -> None:
    """The crops depend on a client's number, not on who else is asked for."""
    fed = replace(images, clients=tuple(replace(c, name=f"{c.name}{i}") for i in range(2) for c in images.clients))
    whole = pooled_queries(fed, crop=True, seed=1, round=2)
    some = pooled_queries(fed, crop=True, seed=1, round=2, clients=[1, 3])
    rows = torch.isin(whole.origin, torch.tensor([1, 3]))
    assert torch.equal(some.x, whole.x[rows])
    assert torch.equal(some.labels, whole.labels[rows])
    assert torch.equal(some.origin, whole.origin[rows])
