"""Label sets for queries of unknown origin: whom they ask, how p-values are weighed, and what they promise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from feddrm.router.answer_calibration import HeldOutAnswers
from feddrm.router.label_sets import (
    MEASURED,
    check_label_miss,
    clients_for_sets,
    label_set_figures,
    mixed_p_values,
    within_set,
)
from refusal import refused


def test_the_fewest_clients_that_hold_the_share_are_asked() -> None:
    weights = torch.tensor([[0.96, 0.03, 0.01], [0.95, 0.03, 0.02], [0.6, 0.3, 0.1], [0.5, 0.45, 0.05]])
    assert clients_for_sets(weights).sum(1).tolist() == [1, 1, 3, 2]
    assert clients_for_sets(weights, 2).sum(1).tolist() == [2, 2, 3, 2]


def test_p_values_are_weighed_by_the_odds_of_origin_given_query_and_label() -> None:
    classes = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]])
    p_values = torch.tensor([[[0.8, 0.04]], [[0.1, 0.6]]])
    weights = torch.tensor([[0.75, 0.25]])
    found = mixed_p_values(weights.log(), classes, p_values)
    first = (0.75 * 0.9 * 0.8 + 0.25 * 0.2 * 0.1) / (0.75 * 0.9 + 0.25 * 0.2)
    second = (0.75 * 0.1 * 0.04 + 0.25 * 0.8 * 0.6) / (0.75 * 0.1 + 0.25 * 0.8)
    assert found.tolist() == [pytest.approx([first, second])]
    alone = mixed_p_values(torch.tensor([[0.0, -torch.inf]]), classes, p_values)
    assert torch.allclose(alone, p_values[0].double())


def test_a_class_that_no_client_gives_any_probability_has_the_clients_own_p_values() -> None:
    """Where a client has few samples, even such a class cannot be excluded."""
    found = mixed_p_values(torch.tensor([[0.5, 0.5]]).log(), torch.zeros(2, 1, 1), torch.tensor([[[0.5]], [[0.1]]]))
    assert found.tolist() == [[pytest.approx(0.3)]]


def test_a_p_value_that_equals_the_miss_up_to_rounding_is_outside() -> None:
    values = torch.tensor([0.1, 2 / 20, 0.100002], dtype=torch.float64)
    assert within_set(values.float().double(), 0.1).tolist() == [False, False, True]


@pytest.mark.parametrize("miss", [0.0, 1.0, -0.1, float("nan")])
def test_a_miss_that_is_no_probability_is_refused(miss: float) -> None:
    with refused(f"label_miss={miss}", "between 0 and 1"):
        check_label_miss(miss)


def test_rules_that_say_nothing_about_origin_are_refused() -> None:
    check_label_miss(0.1, "posterior")
    with refused("rule 'competence'", "density or posterior"):
        check_label_miss(0.1, "competence")


def confused_federation(signal: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clients with different shares of the classes, whose heads and router are true: logits, weights, labels, origin.

    The weaker the ``signal`` of the origin, the more often the router names a wrong client.
    """
    g, clients, classes, samples = torch.Generator().manual_seed(0), 6, 8, 12_000
    prior = torch.rand(clients, classes, generator=g, dtype=torch.float64).pow(4).add(1e-3)
    prior /= prior.sum(1, keepdim=True)
    origin = torch.randint(clients, (samples,), generator=g)
    labels = torch.multinomial(prior[origin], 1, generator=g)[:, 0]

    def evidence(target: Tensor, size: int, strength: float) -> Tensor:
        noise = torch.randn(samples, size, generator=g, dtype=torch.float64)
        return strength * (noise + strength * torch.nn.functional.one_hot(target, size))

    of_class = evidence(labels, classes, 1.5)
    joint = of_class[None] + prior.log()[:, None]
    router = evidence(origin, clients, signal) + joint.logsumexp(-1).T
    return joint, router.log_softmax(1), labels, origin


def test_figures_of_two_samples_by_hand() -> None:
    """One client for certain. At a miss of 0.1 the first set is {0}, the second is empty."""
    p_values = torch.tensor([[[0.5, 0.02], [0.02, 0.03]]]).double()
    held_out = HeldOutAnswers(torch.full((1, 2, 2), 0.5).log().double(), p_values)
    figures = label_set_figures(held_out, torch.zeros(2, 1).double(), torch.tensor([0, 0]))["0.1"]
    assert figures == {"covered": 0.5, "size": 0.5, "empty": 0.5, "asked": 1.0}


@pytest.mark.parametrize(("signal", "found"), [(2.6, 0.88), (9.0, 1.0)])
def test_sets_hold_the_label_as_often_as_promised_even_where_the_router_errs(signal: float, found: float) -> None:
    logits, log_weights, labels, origin = confused_federation(signal)
    assert float((log_weights.argmax(1) == origin).double().mean()) == pytest.approx(found, abs=0.03)
    _, held_out = HeldOutAnswers.of(logits, labels, origin)
    figures = label_set_figures(held_out, log_weights, labels)
    for miss in MEASURED:
        row = figures[str(miss)]
        assert row["covered"] == pytest.approx(1 - miss, abs=0.02)
        assert row["asked"] == pytest.approx(1.0, abs=0.01) if found == 1 else row["asked"] > 1.4
    sizes = [figures[str(miss)]["size"] for miss in MEASURED]
    assert sizes == sorted(sizes, reverse=True)
    # One client alone would miss too often where the router errs: its p-values know nothing of the others' queries.
    best = log_weights.argmax(1)
    alone = within_set(held_out.p_values[best, torch.arange(len(best))], 0.1).gather(1, labels[:, None])
    assert (float(alone.double().mean()) < 0.88) == (found < 1)
