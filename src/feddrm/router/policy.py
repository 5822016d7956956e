"""What to do with a router's scores: whom to ask, how many, when to abstain, and how sure to be.

All functions take log-weights over clients [N, m]; clients that are down or full are masked, which is
exact: the density ratio model of the remaining clients is what is left after renormalising.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.rules import RULES as RULES
from feddrm.rules import Rule


def by_rule(logits: Tensor, log_prior: Tensor, rule: str) -> Tensor:
    """Normalised log-weights [N, m] by the rule of this name."""
    return Rule.find(rule)().log_weights(logits, log_prior.to(logits))


def masked(log_weights: Tensor, available: Tensor | None) -> Tensor:
    """Without the clients that are not ``available`` (bool [m]), renormalised; -inf everywhere if none is left."""
    if available is None:
        return log_weights
    if available.shape != log_weights.shape[-1:]:
        raise FeddrmError(
            f"availability of {len(available)} clients for a router of {log_weights.shape[-1]}: give one each"
        )
    left = log_weights.masked_fill(~available.to(log_weights.device), -math.inf)
    return left - left.logsumexp(-1, keepdim=True) if bool(available.any()) else left


def consult(log_weights: Tensor, log_classes: Tensor, k: int | None = None) -> Tensor:
    """Log class probabilities [N, K] of the ``k`` best clients' mixture, weights renormalised; None asks all.

    ``log_classes`` [m, N, K] are the clients' own log-probabilities. k = 1 is hard routing.
    """
    clients = log_weights.shape[-1]
    if k is not None and not 1 <= k <= clients:
        raise SettingError(f"consult {k} of {clients} clients: give 1 to {clients}")
    if k is not None and k < clients:
        top = log_weights.topk(k, dim=-1)
        log_weights = torch.full_like(log_weights, -math.inf).scatter(-1, top.indices, top.values.log_softmax(-1))
    return (log_weights.T[:, :, None] + log_classes).logsumexp(0)


def margins(log_weights: Tensor) -> Tensor:
    """Difference between the two largest weights of every row; zero is a tie, which goes to the smaller number."""
    if log_weights.shape[-1] == 1:
        return log_weights[..., 0].exp()
    two = log_weights.exp().topk(2, dim=-1).values
    return two[..., 0] - two[..., 1]


def conformal_threshold(log_weights: Tensor, origin: Tensor, miss: float) -> float:
    """The least weight a client may have to belong to the set, by split conformal prediction.

    If validation and new queries are exchangeable, the set holds the true client with a probability
    of at least 1 - ``miss`` (Vovk et al., 2005). Zero, every client, where there are too few
    validation samples to promise it.
    """
    if not 0 < miss < 1:
        raise SettingError(f"miss={miss}: give a probability between 0 and 1")
    own = log_weights.gather(1, origin[:, None])[:, 0].exp().sort().values
    rank = math.floor((len(own) + 1) * miss)  # of the weights in rising order; those below are outside the set
    return float(own[rank - 1]) if rank >= 1 else 0.0


def conformal_set(log_weights: Tensor, threshold: float) -> Tensor:
    """Which clients belong to each query's set: bool [N, m]."""
    return log_weights.exp() >= threshold


def client_slopes(logits: Tensor, target: Tensor, scale: float) -> ClientSums:
    """The client's half of :func:`fit_temperature`: slope and curvature at one inverse temperature, summed."""
    z = logits.double()
    p = (scale * z).softmax(1)
    mean = (p * z).sum(1)
    return {
        "count": torch.tensor(float(len(z)), dtype=torch.float64, device=z.device),
        "slope": (mean - z.gather(1, target[:, None])[:, 0]).sum(),
        "even": (mean - z.mean(1)).sum(),
        "bend": ((p * z.square()).sum(1) - mean.square()).sum(),
    }


def solve_temperature(slopes: Callable[[float], ClientSums], steps: int = 50, tolerance: float = 1e-12) -> float:
    """The server's half: Newton on the added :func:`client_slopes` of whatever inverse temperature it asks for.

    To the samples comes one more, like them all and from any client alike: where every sample is told
    right, certainty would otherwise grow without bound (as Platt, 1999, smooths his targets).
    """
    scale = 1.0
    for _ in range(steps):
        found = slopes(scale)
        slope, even, bend = (float(found[key] / found["count"]) for key in ("slope", "even", "bend"))
        slope, bend = slope + even / float(found["count"]), bend * (1 + 1 / float(found["count"]))
        if bend <= 0 or abs(slope) < tolerance:
            break
        scale = min(max(scale - slope / bend, scale / 2), scale * 2)
    return 1 / min(max(scale, 1e-2), 1e2)


def fit_temperature(logits: Tensor, target: Tensor) -> float:
    """The T for which softmax(logits / T) has the least loss on held-out samples and one more; convex in 1 / T."""
    return solve_temperature(lambda scale: client_slopes(logits, target, scale))


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: per bin of confidence how many samples, their mean confidence and accuracy."""

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def error(self) -> float:
        """Expected calibration error: the gap of the bins, weighted by their samples."""
        return float((self.count * (self.confidence - self.accuracy).abs()).sum() / self.count.sum())

    def as_dict(self) -> dict[str, Any]:
        return {
            "edges": self.edges.tolist(),
            "count": self.count.long().tolist(),
            "confidence": self.confidence.tolist(),
            "accuracy": self.accuracy.tolist(),
        }


def reliability(log_weights: Tensor, target: Tensor, bins: int = 15) -> Reliability:
    """How often the top answer is right, by how sure it was."""
    confidence, answer = log_weights.double().exp().max(1)
    right = (answer == target).double()
    place = (confidence * bins).long().clamp(0, bins - 1)

    def total(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64, device=values.device).index_add(0, place, values)

    count = total(torch.ones_like(confidence))
    some = count.clamp(min=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    return Reliability(edges, count.cpu(), (total(confidence) / some).cpu(), (total(right) / some).cpu())
