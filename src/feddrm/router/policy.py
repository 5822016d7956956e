"""Decisions from a router's scores: consulting, conformal sets, temperature and reliability.

Most functions take log-weights over clients [N, m].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation.answer_metrics import calibration_bins
from feddrm.moments.score_test import SampleMoments
from feddrm.router.features.roughness import RoughnessRange
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.rules import RULES as RULES
from feddrm.rules import Evidence, Posterior, Rule

SCALES = (1e-2, 1e2)  # inverse temperatures
STEPS, FLAT = 50, 1e-12  # of the fit of a temperature: its steps at most, and the slope at which it ends
SLOPES = ("count", "slope", "even", "bend")  # the sums that a temperature is fitted from
TIED = 1e-4  # log-odds that differ by less are equal: float32 rounds those of equal samples apart, by batch
FLOAT32 = 1e-6  # what a probability in float32 may lack of itself
WHOLE = 1e-9  # shares of subjects whose sum is as near to a whole number are whole subjects
Number = TypeVar("Number", float, Tensor)


def by_rule(logits: Tensor, log_prior: Tensor, rule: str) -> Tensor:
    """Normalised log-weights [N, m] by a rule that needs nothing but the odds of origin."""
    return Rule.find(rule)().log_weights(Evidence(logits, log_prior.to(logits)))


def consult(log_weights: Tensor, log_classes: Tensor, k: int | None = None) -> Tensor:
    """Log class probabilities [N, K] of the mixture of the ``k`` best clients, or of all if ``k`` is None.

    ``log_classes`` [m, N, K] are the clients' own log-probabilities. Weights are renormalised; k = 1 is
    hard routing.
    """
    clients = log_weights.shape[-1]
    if k is not None and not 1 <= k <= clients:
        raise SettingError(f"consult {k} of {clients} clients: give 1 to {clients}")
    if k is not None and k < clients:
        top = log_weights.topk(k, dim=-1)
        log_weights = top.values.log_softmax(-1)
        log_classes = log_classes[top.indices.T, torch.arange(len(log_weights), device=log_weights.device)]
    return (log_weights.T[:, :, None] + log_classes).logsumexp(0)


def leaders(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of every row of weights [N, m], its number, and by how much it exceeds the next.

    Zero is a tie, which the smaller number wins. On a CPU, NumPy finds all, without a copy of the weights: torch
    takes 20 times as long for the number.
    """
    if weights.is_cuda:
        best = weights.argmax(1)
        top = weights.gather(1, best[:, None])[:, 0]
        others = weights.scatter(1, best[:, None], -torch.inf)
        return top, best, top - others.amax(1) if weights.shape[1] > 1 else top
    values = weights.detach().numpy()
    places = np.arange(len(values)), values.argmax(1)
    largest = values[places]
    if weights.shape[1] == 1:
        margin = largest
    else:
        values[places] = -np.inf  # for a moment
        margin = largest - values.max(1)
        values[places] = largest
    return torch.from_numpy(largest), torch.from_numpy(places[1]), torch.from_numpy(margin)


def log_pooled_density(scores: Tensor, log_prior: Tensor, rule: str, weights: Tensor, best: Tensor) -> Tensor:
    """log dP [N, 1] of the pooled data, up to the same constant per sample as the scores of a rule of origin.

    ``weights`` are the scores' softmax, ``best`` [N] the largest. The normaliser follows from these: another softmax
    over a thousand clients takes longer than their product with few features.
    """
    place = best[:, None]
    normaliser = scores.gather(1, place) - weights.gather(1, place).log()
    if rule == Posterior.name:  # its scores have the prior
        return normaliser
    return normaliser + (weights @ log_prior.to(weights).exp()).log()[:, None]


@dataclass(frozen=True)
class Calibration:
    """Constants measured on samples that the router was not fitted on (see :mod:`feddrm.router.fit.calibration`).

    ``confidence`` has, per rule, the 101 percentiles of the largest weight (by competence: of the largest probability
    of a right answer). ``conformal`` has, per rule and probability of missing the true client, the smallest weight of a
    client in the set. Samples whose strangeness exceeds ``unlike_above`` are unlike all training data. Drift is
    measured against ``reference``; it is None in older routers, deployed ones, and where training crops at random.
    ``tested`` says that thresholds and reference come from test samples; those of older routers come from training
    samples. Pictures whose ``roughness`` is outside this range are unlike all training pictures; None for tables and in
    older routers.
    """

    temperature: float = 1.0
    confidence: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    conformal: Mapping[str, float] = field(default_factory=dict)
    unlike_above: float = float("inf")
    reference: SampleMoments | None = None
    tested: bool = False
    roughness: RoughnessRange | None = None

    def threshold(self, rule: str, coverage: float) -> float:
        """The confidence that this fraction of the samples reaches."""
        if not 0 < coverage <= 1:
            raise SettingError(f"coverage={coverage}: give a fraction above 0, at most 1")
        if coverage == 1:
            return 0.0
        if rule not in self.confidence:
            raise FeddrmError(f"this router has no held-out confidences for rule '{rule}': fit it again")
        percentiles = self.confidence[rule]
        place = (1 - coverage) * (len(percentiles) - 1)
        low = int(place)
        high = min(low + 1, len(percentiles) - 1)
        return _without_rounding(percentiles[low] + (place - low) * (percentiles[high] - percentiles[low]))

    def least_weight(self, rule: str, miss: float) -> float:
        """The smallest weight of a client in the conformal set that misses the true one with this probability."""
        if f"{rule}_{miss}" not in self.conformal:
            known = [name.removeprefix(f"{rule}_") for name in self.conformal if name.startswith(f"{rule}_")]
            remedy = f"choose {', '.join(known)}" if known else "fit it again"
            if rule not in RULES:
                remedy = f"such sets are of origin, give rule {' or '.join(RULES)}"
            raise SettingError(f"miss={miss}: this router has no such conformal set for rule '{rule}': {remedy}")
        return _without_rounding(self.conformal[f"{rule}_{miss}"])


def subject_shares(subject: Tensor) -> Tensor:
    """How large a part of its subject each sample is, so that samples of one subject count as one together."""
    _, place, sizes = torch.unique(subject, return_inverse=True, return_counts=True)
    shares: Tensor = sizes.double().reciprocal()[place]
    return shares


def subjects_up_to(shares: Tensor) -> Tensor:
    """How many subjects the first samples are [n + 1], from none to all, by their :func:`subject_shares`."""
    counts = torch.cat([shares.new_zeros(1), shares.cumsum(0)])
    whole = counts.round()
    return torch.where((counts - whole).abs() < WHOLE, whole, counts)


def conformal_threshold(own: Tensor, shares: Tensor, miss: float) -> float:
    """The smallest weight of a client in the conformal set, by split conformal prediction.

    ``own`` [n] are the log-weights of the validation samples' own clients. If a new query's subject is exchangeable
    with theirs, the set holds the true client with a probability of at least 1 - ``miss`` (Vovk et al., 2005; with
    several samples of a subject Lee, Barber and Willett, 2023). The threshold is zero, which admits every client,
    where there are too few subjects for that guarantee.
    """
    if not 0 < miss < 1:
        raise SettingError(f"miss={miss}: give a probability between 0 and 1")
    weights, order = own.exp().sort()
    counts = subjects_up_to(shares.to(own.device)[order])
    rank = int((counts + 1 > (counts[-1] + 1) * miss).nonzero()[0])  # smaller weights are outside the set
    return float(weights[rank - 1]) if rank >= 1 else 0.0


def conformal_set(log_weights: Tensor, threshold: Number) -> Tensor:
    """Which clients belong to each query's set: bool [N, m]. Queries [N, 1] may have thresholds of their own."""
    return log_weights.exp() >= _without_rounding(threshold)


def _without_rounding(threshold: Number) -> Number:
    """A threshold that samples tied with it reach in float32, too: of few different samples, many are."""
    return threshold - threshold * (TIED * (1 - threshold) + FLOAT32)


def client_slopes(logits: Tensor, target: Tensor, scale: float | Tensor, seen: float | Tensor = 1.0) -> ClientSums:
    """The client's half of :func:`solve_temperature`: sums of slope and curvature at one inverse temperature.

    Or at several scales [s], each of its own samples: ``seen`` [s, n] is 1 for these and 0 for others.
    """
    z = logits.double()
    p = (torch.as_tensor(scale, dtype=z.dtype, device=z.device)[..., None, None] * z).softmax(-1)
    mean = (p * z).sum(-1)
    right, average = z.gather(1, target[:, None])[:, 0], z.mean(1)
    each = {
        "count": torch.ones_like(right),
        "slope": mean - right,
        "even": mean - average,
        "bend": (p * z.square()).sum(-1) - mean.square(),
    }
    return {key: (value * seen).sum(-1) for key, value in each.items()}


def solve_temperature(slopes: Callable[[float], ClientSums]) -> float:
    """The server's half, on the clients' added :func:`client_slopes`."""
    return float(solve_temperatures(lambda scale: slopes(float(scale)), torch.ones((), dtype=torch.float64)))


def solve_temperatures(slopes: Callable[[Tensor], ClientSums], start: Tensor) -> Tensor:
    """Newton's method on several temperatures at once, each with its own sums; their inverses begin at ``start``.

    ``slopes`` returns the sums at inverse temperatures. One more sample is added, an average of all, which comes from
    every client with equal probability. Without it confidence would grow without bound where every sample is
    right (Platt, 1999, smooths his targets for the same reason). Logits so far apart that the curvature rounds to zero
    have a slope still: the scale is halved or doubled. Without samples it stays.
    """
    scale, (least, most) = start, SCALES
    for _ in range(STEPS):
        sums = slopes(scale)
        count, slope, even, bend = torch.stack([sums[key] for key in SLOPES]).to(scale)
        count = count.clamp(min=1)
        slope, bend = (slope + even / count) / count, bend * (1 + 1 / count) / count
        step = torch.where(bend > 0, -slope / bend, torch.copysign(scale.new_full((), math.inf), -slope))
        moved = (scale + step).clamp((scale / 2).clamp(min=least), (scale * 2).clamp(max=most))
        moved = torch.where(slope.abs() < FLAT, scale, moved)
        if torch.equal(moved, scale):
            break
        scale = moved
    return 1 / scale


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: number of samples, mean confidence and accuracy in each bin of confidence."""

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def error(self) -> float:
        """Expected calibration error: the bins' gaps between confidence and accuracy, weighted by their samples."""
        return float((self.count * (self.confidence - self.accuracy).abs()).sum() / self.count.sum())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``evaluation.json``."""
        return {
            "edges": self.edges.tolist(),
            "count": self.count.long().tolist(),
            "confidence": self.confidence.tolist(),
            "accuracy": self.accuracy.tolist(),
        }


def reliability(log_weights: Tensor, target: Tensor) -> Reliability:
    """How often the best client is the right one, by the router's confidence."""
    confidence, best = log_weights.double().exp().max(1)
    return reliability_of(confidence, best == target)


def reliability_of(confidence: Tensor, found: Tensor) -> Reliability:
    """How often samples are right, by the confidence in them."""
    sums = calibration_bins(torch.ones_like(confidence)[:, None], confidence, found)
    count, sure, right = (values[:, 0].cpu() for values in sums)
    divisor = count.clamp(min=1)
    edges = torch.linspace(0, 1, len(count) + 1, dtype=torch.float64)
    return Reliability(edges, count, sure / divisor, right / divisor)
