"""What every routing rule promises. A new rule is one row of ``ROWS``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from feddrm.rules import RULES, RULES_HELP, Density, Posterior, Rule

SIZES = torch.tensor([10.0, 30.0, 60.0], dtype=torch.float64)
LOG_PRIOR = (SIZES / SIZES.sum()).log()


class Row(NamedTuple):
    """A rule and its weights in closed form, from posterior odds [N, m] and prior shares [m]."""

    rule: Rule
    weights: Callable[[Tensor, Tensor], Tensor]


ROWS = [
    Row(Density(), lambda odds, prior: (odds / prior) / (odds / prior).sum(1, keepdim=True)),
    Row(Posterior(), lambda odds, prior: odds / odds.sum(1, keepdim=True)),
]
every = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule.name)


def random_logits(rows: int = 40) -> Tensor:
    return 3 * torch.randn(rows, len(SIZES), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_every_registered_rule_has_a_row():
    assert [row.rule.name for row in ROWS] == list(RULES) == list(Rule.family)


def test_the_help_text_describes_every_rule():
    for name, rule in Rule.family.items():
        assert f"{name} ({rule.summary().lower()})" in RULES_HELP
        assert 10 < len(rule.summary()) < 60
        assert not rule.summary().endswith(".")


@every
def test_weights_sum_to_one(row):
    log_weights = row.rule.log_weights(random_logits(), LOG_PRIOR)
    torch.testing.assert_close(log_weights.exp().sum(1), torch.ones(40, dtype=torch.float64), rtol=0, atol=1e-14)


@every
@pytest.mark.parametrize("scale", [1e-3, 1.0, 700.0])
def test_weights_are_finite_where_the_logits_are(row, scale):
    assert row.rule.log_weights(scale * random_logits(), LOG_PRIOR).isfinite().all()


@every
def test_weights_do_not_depend_on_a_constant_per_query(row):
    logits, constant = random_logits(), torch.linspace(-50, 50, 40, dtype=torch.float64)[:, None]
    moved = row.rule.log_weights(logits + constant, LOG_PRIOR)
    torch.testing.assert_close(moved, row.rule.log_weights(logits, LOG_PRIOR), rtol=0, atol=1e-12)


@every
def test_scores_are_the_weights_up_to_a_constant_per_query(row):
    logits = random_logits()
    gap = row.rule.scores(logits, LOG_PRIOR) - row.rule.log_weights(logits, LOG_PRIOR)
    torch.testing.assert_close(gap, gap[:, :1].expand_as(gap), rtol=0, atol=1e-12)


@every
def test_weights_have_their_closed_form(row):
    logits = random_logits()
    wanted = row.weights(logits.exp(), SIZES / SIZES.sum())
    torch.testing.assert_close(row.rule.log_weights(logits, LOG_PRIOR).exp(), wanted, rtol=1e-12, atol=0)


@every
def test_precision_and_shape_are_those_of_the_logits(row):
    logits = random_logits().float()
    log_weights = row.rule.log_weights(logits, LOG_PRIOR.float())
    assert (log_weights.dtype, log_weights.shape) == (logits.dtype, logits.shape)


@every
def test_clients_in_another_order_get_the_same_weights(row):
    logits, order = random_logits(), [2, 0, 1]
    moved = row.rule.log_weights(logits[:, order], LOG_PRIOR[order])
    torch.testing.assert_close(moved, row.rule.log_weights(logits, LOG_PRIOR)[:, order], rtol=0, atol=1e-13)


def test_clients_of_equal_size_make_density_and_posterior_equal():
    logits, equal = random_logits(), torch.zeros(3, dtype=torch.float64)
    assert torch.equal(Density().log_weights(logits, equal), Posterior().log_weights(logits, equal))
    shares = equal - torch.tensor(3.0).log()
    torch.testing.assert_close(
        Density().log_weights(logits, shares), Posterior().log_weights(logits, shares), rtol=0, atol=1e-14
    )
