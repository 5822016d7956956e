"""Label sets: the classes that a query may have, for a query of unknown origin.

Each client that is asked gives its answer and a conformal p-value of every class
(:class:`feddrm.router.answer_calibration.AnswerCalibration`). If label y is right, client k is the origin of query x
with a probability in proportion to w_k(x) p_k(y | x): the router's weight of the client times the client's probability
of the label. The mean of the clients' p-values by these weights is the p-value of y for a query of unknown origin. A
set holds the classes whose p-value exceeds the allowed miss. docs/router.md says what is promised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from feddrm.errors import SettingError
from feddrm.router.answer_calibration import HeldOutAnswers
from feddrm.rules import RULES

SHARE = 0.95  # of the router's probability: the clients that a set is made of hold at least this
ROUNDING = 1e-6  # p-values are sent with 24 bits
MEASURED = (0.05, 0.1, 0.2)
TINY = 1e-100  # so that a class without any probability keeps the router's weights


def check_label_miss(miss: float, rule: str = RULES[0]) -> None:
    """Refuse a miss that is no probability, and rules that say nothing about origin."""
    if not 0 < miss < 1:
        raise SettingError(f"label_miss={miss}: give a probability between 0 and 1, such as 0.1")
    if rule not in RULES:
        raise SettingError(f"label_miss with rule '{rule}': label sets weigh origins, give rule {' or '.join(RULES)}")


def clients_for_sets(weights: Tensor, consult: int = 1) -> Tensor:
    """Which clients a set is made of [N, k]: the fewest that hold ``SHARE``, at least ``consult``.

    ``weights`` [N, k] are the router's probabilities of clients, best first.
    """
    before = weights.cumsum(1) - weights
    return (before < SHARE - ROUNDING) | (torch.arange(weights.shape[1], device=weights.device) < consult)


def mixed_p_values(log_weights: Tensor, classes: Tensor, p_values: Tensor) -> Tensor:
    """The p-values [N, K] for a query of unknown origin, from those of k clients [k, N, K].

    ``log_weights`` [N, k] are the router's, minus infinity for a client that was not asked. ``classes`` are the
    clients' class probabilities.
    """
    joint = classes.double().clamp_min(TINY).mul_(log_weights.double().exp().T[:, :, None])  # many: changed in place
    total = joint.sum(0)
    return joint.mul_(p_values).sum(0) / total


def within_set(p_values: Tensor, miss: float) -> Tensor:
    """Which classes belong to the set."""
    return p_values > miss + ROUNDING


def label_set_figures(held_out: HeldOutAnswers, log_weights: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """By allowed miss: how often a set holds the label, how many classes it holds, how often it is empty.

    ``asked`` is the mean number of clients that a set is made of.
    """
    ranked = log_weights.exp().sort(1, descending=True)
    asked = torch.zeros_like(log_weights, dtype=torch.bool)
    asked.scatter_(1, ranked.indices, clients_for_sets(ranked.values))
    weights = log_weights.masked_fill(~asked, -torch.inf)
    p_values = mixed_p_values(weights, held_out.log_classes.exp(), held_out.p_values)
    figures = {}
    for miss in MEASURED:
        sets = within_set(p_values, miss).double()
        figures[str(miss)] = {
            "covered": float(sets.gather(1, labels[:, None]).mean()),
            "size": float(sets.sum(1).mean()),
            "empty": float((sets.sum(1) == 0).double().mean()),
            "asked": float(asked.sum(1).double().mean()),
        }
    return figures
