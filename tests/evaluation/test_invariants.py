"""What must hold of accuracies whatever the models say."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from feddrm.evaluation import (
    TIES,
    Predictions,
    average_accuracy,
    client_accuracy,
    confusion,
    evaluate,
    oracle_accuracy,
    per_client,
    route,
    routed_predictions,
    system_accuracy,
    vote,
)


@st.composite
def federations(draw: st.DrawFn, least: int = 1) -> tuple[Predictions, Tensor]:
    """Predictions to a shuffled test set with something of every client, and weights.

    Logits are small whole numbers, so that ties abound.
    """
    m, classes = draw(st.integers(least, 9)), draw(st.integers(2, 6))
    sizes = torch.tensor(draw(st.lists(st.integers(1, 9), min_size=m, max_size=m)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    n = int(sizes.sum())
    origin = torch.repeat_interleave(torch.arange(m), sizes)[torch.randperm(n, generator=generator)]

    def whole(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator).float()

    labels = torch.randint(0, classes, (n,), generator=generator)
    weights = torch.rand(m, generator=generator, dtype=torch.float64) + 0.01
    return Predictions(whole(m, n, classes), labels, origin, whole(n, m), whole(n, classes)), weights / weights.sum()


@given(federations(), st.sampled_from(TIES))
def test_a_single_model_votes_for_its_own_prediction(federation: tuple[Predictions, Tensor], ties: str) -> None:
    for logits in federation[0].logits:
        assert torch.equal(vote(logits[None], ties), logits.argmax(-1))


@given(federations(), st.randoms())
def test_the_order_of_clients_does_not_matter_to_votes(federation: tuple[Predictions, Tensor], random: Random) -> None:
    logits = federation[0].logits
    order = random.sample(range(len(logits)), len(logits))
    for ties in TIES:
        assert torch.equal(vote(logits[order], ties), vote(logits, ties))


@given(federations())
def test_any_tie_rule_elects_a_class_with_most_votes(federation: tuple[Predictions, Tensor]) -> None:
    votes = federation[0].logits.argmax(-1)
    most = votes.mode(0).values
    for ties in TIES:
        elected = vote(federation[0].logits, ties)
        assert torch.equal((votes == elected).sum(0), (votes == most).sum(0))


@given(federations(), st.floats(1e-3, 1e3))
def test_the_rules_agree_where_weights_are_equal(federation: tuple[Predictions, Tensor], weight: float) -> None:
    client_logits = federation[0].client_logits
    assert client_logits is not None
    equal = torch.full((client_logits.shape[1],), weight)
    assert torch.equal(route(client_logits, equal, "density"), route(client_logits, equal, "posterior"))


@given(federations())
def test_the_density_rule_is_the_posterior_rule_with_the_prior_taken_off(
    federation: tuple[Predictions, Tensor],
) -> None:
    predictions, weights = federation
    assert predictions.client_logits is not None
    with_prior = predictions.client_logits.double() * 1.001 + 0.1 * torch.arange(len(weights)) + weights.log()
    without = predictions.client_logits.double() * 1.001 + 0.1 * torch.arange(len(weights))
    assert torch.equal(route(with_prior, weights, "density"), route(without, weights, "posterior"))


@given(federations())
def test_a_router_that_knows_is_the_oracle(federation: tuple[Predictions, Tensor]) -> None:
    predictions, weights = federation
    knowing = torch.nn.functional.one_hot(predictions.origin, len(weights)) * 100.0
    predictions = predictions._replace(client_logits=knowing)
    measured = evaluate(predictions, weights)
    for rule in ("head_density", "head_posterior"):
        assert measured["system_accuracy"][rule] == measured["oracle_accuracy"]
        assert measured["client_accuracy"][rule] == 1.0
    assert system_accuracy(
        routed_predictions(predictions.logits, predictions.origin), predictions.labels
    ) == oracle_accuracy(predictions)


@given(federations())
def test_average_is_oracle_where_weights_follow_the_test_sizes(federation: tuple[Predictions, Tensor]) -> None:
    predictions, weights = federation
    sizes = torch.bincount(predictions.origin, minlength=len(weights))
    assert average_accuracy(predictions, sizes) == pytest.approx(oracle_accuracy(predictions), abs=1e-14)
    assert predictions.client_logits is not None
    home = client_accuracy(predictions.client_logits, predictions.origin, sizes, "posterior")
    pooled = system_accuracy(route(predictions.client_logits, sizes, "posterior"), predictions.origin)
    assert home == pytest.approx(pooled, abs=1e-14)


@given(federations())
def test_confusion_counts_every_sample_once(federation: tuple[Predictions, Tensor]) -> None:
    predictions, weights = federation
    assert predictions.client_logits is not None
    m, n = len(weights), len(predictions.labels)
    for rule in ("density", "posterior"):
        routes = route(predictions.client_logits, weights, rule)
        table = confusion(routes, predictions.origin, m)
        assert table.sum(1).tolist() == torch.bincount(predictions.origin, minlength=m).tolist()
        assert table.sum(0).tolist() == torch.bincount(routes, minlength=m).tolist()
        assert int(table.diagonal().sum()) / n == system_accuracy(routes, predictions.origin)


@given(federations(), st.sampled_from(TIES))
def test_the_rows_of_clients_add_up_to_the_whole(federation: tuple[Predictions, Tensor], ties: str) -> None:
    predictions, weights = federation
    whole = evaluate(predictions, weights, ties)
    rows = per_client(predictions, [str(i) for i in range(len(weights))], weights, ties)
    n = len(predictions.labels)

    def pooled(key: str) -> float:
        return sum(row["test"] * row[key] for row in rows) / n  # type: ignore[operator, misc]

    def weighted(key: str) -> float:
        return sum(float(w) * row[key] for w, row in zip(weights, rows, strict=True))  # type: ignore[operator, misc]

    assert weighted("own") == pytest.approx(whole["average_accuracy"])
    assert pooled("own") == pytest.approx(whole["oracle_accuracy"])
    assert pooled("global") == pytest.approx(whole["global_accuracy"])
    assert pooled("vote") == pytest.approx(whole["system_accuracy"]["vote"])
    for rule in ("density", "posterior"):
        assert pooled(f"head_{rule}") == pytest.approx(whole["system_accuracy"][f"head_{rule}"])
        assert weighted(f"recall_{rule}") == pytest.approx(whole["client_accuracy"][f"head_{rule}"])
