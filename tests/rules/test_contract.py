"""What every routing rule promises. A new rule is one row of ``ROWS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from feddrm.rules import (
    RIVALS,
    ROUTING_RULES,
    RULES,
    RULES_HELP,
    Competence,
    Density,
    Evidence,
    LargestCosine,
    LeastEntropy,
    MostConfident,
    NearestMean,
    Posterior,
    Rule,
)

SIZES = torch.tensor([10.0, 30.0, 60.0], dtype=torch.float64)
LOG_PRIOR = (SIZES / SIZES.sum()).log()


class Row(NamedTuple):
    """A rule and its weights in closed form, up to a factor per query."""

    rule: Rule
    weights: Callable[[Evidence], Tensor]


def negative_distance(e: Evidence) -> Tensor:
    return -torch.cdist(e.features, e.means).square() / 2


ROWS = [
    Row(Competence(), lambda e: e.right / (1 - e.right)),
    Row(Density(), lambda e: e.logits.exp() / e.log_prior.exp()),
    Row(Posterior(), lambda e: e.logits.exp()),
    Row(MostConfident(), lambda e: e.answers.exp().amax(2).T),
    Row(LeastEntropy(), lambda e: (-torch.special.entr(e.answers.exp()).sum(2)).exp().T),
    Row(NearestMean(), lambda e: negative_distance(e).exp()),
    Row(LargestCosine(), lambda e: torch.cosine_similarity(e.features[:, None], e.means[None], dim=2).exp()),
]
every = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule.name)


def random_evidence(rows: int = 40, scale: float = 1.0) -> Evidence:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return Evidence(
        3 * scale * normal(rows, 3),
        LOG_PRIOR,
        (2 * normal(rows, 3)).sigmoid(),
        (scale * normal(3, rows, 4)).log_softmax(2),
        normal(rows, 5),
        normal(3, 5),
    )


def in_order(evidence: Evidence, order: list[int]) -> Evidence:
    """The same evidence with the clients in another order."""
    e = evidence
    return Evidence(
        e.logits[:, order], e.log_prior[order], e.right[:, order], e.answers[order], e.features, e.means[order]
    )


def test_every_registered_rule_has_a_row():
    assert [row.rule.name for row in ROWS] == list(Rule.family) == [*sorted(ROUTING_RULES), *RIVALS]
    assert (RULES, ROUTING_RULES) == (("density", "posterior"), ("density", "posterior", "competence"))


def test_the_help_text_describes_every_rule_that_a_router_can_route_by():
    for name in ROUTING_RULES:
        assert f"{name} ({Rule.family[name].summary().lower()})" in RULES_HELP
    assert not [name for name in RIVALS if name in RULES_HELP]


@every
def test_the_summary_is_one_short_line(row):
    assert 10 < len(row.rule.summary()) < 80
    assert not row.rule.summary().endswith(".")


@every
def test_weights_sum_to_one(row):
    log_weights = row.rule.log_weights(random_evidence())
    torch.testing.assert_close(log_weights.exp().sum(1), torch.ones(40, dtype=torch.float64), rtol=0, atol=1e-14)


@every
@pytest.mark.parametrize("scale", [1e-3, 1.0, 700.0])
def test_weights_are_finite_where_the_evidence_is(row, scale):
    assert row.rule.log_weights(random_evidence(scale=scale)).isfinite().all()


@every
def test_weights_do_not_depend_on_a_constant_per_query(row):
    evidence, constant = random_evidence(), torch.linspace(-50, 50, 40, dtype=torch.float64)[:, None]
    moved = row.rule.log_weights(replace(evidence, logits=evidence.logits + constant))
    torch.testing.assert_close(moved, row.rule.log_weights(evidence), rtol=0, atol=1e-12)


@every
def test_scores_are_the_weights_up_to_a_constant_per_query(row):
    gap = row.rule.scores(random_evidence()) - row.rule.log_weights(random_evidence())
    torch.testing.assert_close(gap, gap[:, :1].expand_as(gap), rtol=0, atol=1e-12)


@every
def test_weights_have_their_closed_form(row):
    evidence = random_evidence()
    wanted = row.weights(evidence)
    wanted = wanted / wanted.sum(1, keepdim=True)
    torch.testing.assert_close(row.rule.log_weights(evidence).exp(), wanted, rtol=1e-12, atol=0)


@every
def test_a_rule_looks_at_nothing_but_the_odds_and_what_it_needs(row):
    evidence = random_evidence()
    optional = [field.name for field in fields(Evidence) if field.default is None]
    without = replace(evidence, **{name: None for name in optional if name not in row.rule.needs})
    assert set(row.rule.needs) <= set(optional)
    assert torch.equal(row.rule.scores(without), row.rule.scores(evidence))


@every
def test_precision_and_shape_are_those_of_the_evidence(row):
    evidence = Evidence(**{field.name: getattr(random_evidence(), field.name).float() for field in fields(Evidence)})
    log_weights = row.rule.log_weights(evidence)
    assert (log_weights.dtype, log_weights.shape) == (torch.float32, (40, 3))


@every
def test_clients_in_another_order_get_the_same_weights(row):
    evidence, order = random_evidence(), [2, 0, 1]
    moved = row.rule.log_weights(in_order(evidence, order))
    torch.testing.assert_close(moved, row.rule.log_weights(evidence)[:, order], rtol=0, atol=1e-13)


def test_clients_of_equal_size_make_density_and_posterior_equal():
    equal = replace(random_evidence(), log_prior=torch.zeros(3, dtype=torch.float64))
    assert torch.equal(Density().log_weights(equal), Posterior().log_weights(equal))
    shares = replace(equal, log_prior=equal.log_prior - torch.tensor(3.0).log())
    torch.testing.assert_close(Density().log_weights(shares), Posterior().log_weights(shares), rtol=0, atol=1e-14)


@pytest.mark.parametrize("costs", [(0.0, 0.0, 0.0), (0.1, 0.0, 0.3), (1.0, 1.0, 1.0), (1.0, 0.99, 0.2)])
def test_competence_asks_the_client_with_the_most_probability_after_costs(costs):
    evidence = random_evidence()
    value = evidence.right - torch.tensor(costs, dtype=torch.float64)
    scores = Competence(costs).scores(evidence)
    assert torch.equal(scores.argsort(1), value.argsort(1))  # also where every client costs more than it is worth
    assert torch.equal(Competence().scores(evidence), Competence((0.0, 0.0, 0.0)).scores(evidence))


def test_the_mean_at_the_origin_has_no_direction():
    evidence = random_evidence()
    evidence.means[1] = 0
    assert torch.equal(LargestCosine().scores(evidence)[:, 1], torch.zeros(40, dtype=torch.float64))
