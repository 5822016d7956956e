"""Calibrating a router: its temperature on held-out training samples, its thresholds on test samples.

A network tells samples that it was trained on apart better than new ones, also if the router was fitted without them.
Thresholds of training samples let sets of clients miss too often. They change no label, so test samples may set them
(docs/decisions/0012-answers-calibrated-on-test-samples.md). A temperature changes the labels of mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from feddrm.data import Client
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs, strangeness
from feddrm.router.features.roughness import RoughnessRange, training_roughness
from feddrm.router.fit.cohort import Confidence, HeldOutRouter
from feddrm.router.policy import (
    RULES,
    Calibration,
    by_rule,
    client_slopes,
    conformal_threshold,
    solve_temperature,
    subject_shares,
)
from feddrm.router.query_drift import MOST_CLIENTS, drift_reference
from feddrm.router.solver.client_statistics import ClientSums

Made = TypeVar("Made")
MISSES = (0.01, 0.05, 0.1, 0.2)
# Times the strangest held-out sample, or the roughest training picture: a query beyond that comes from no client.
STRANGER = 1.5


class OnDemand(Sequence[Made]):
    """One value per client, made when it is looked at: logits of all samples over all clients may not fit in memory."""

    def __init__(self, clients: int, make: Callable[[int], Made]) -> None:
        self._clients, self._make = range(clients), make

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, number: Any) -> Any:
        return self._make(self._clients[number])


@dataclass(frozen=True, eq=False)
class LocalHeldOut:
    """Standardised features and logits of every client's training samples and test samples.

    The logits of a training sample are those of the fit that did not see it, NaN where every fit did. ``clients`` have
    the training pictures and the subjects.
    """

    rows: Sequence[Tensor]
    logits: Sequence[Tensor]
    test: Sequence[tuple[Tensor, Tensor]]
    clients: Sequence[Client]

    def slopes(self, scale: float) -> ClientSums:
        logits, origin = _joined([logits for _, logits, _ in self._held_out])
        return client_slopes(logits, origin, scale)

    def confidence(self, temperature: float, log_prior: Tensor, inputs: DecorrelatedInputs | None = None) -> Confidence:
        """Client by client: the weights of all samples over all clients may not fit in memory."""
        top: dict[str, list[Tensor]] = {rule: [] for rule in RULES}
        own: dict[str, list[Tensor]] = {rule: [] for rule in RULES}
        strange, kept, shares = [], [], []
        for number, held in enumerate(self._held_out):
            x, logits, subject = held
            if len(tested := self.clients[number].test):
                (x, logits), subject = self.test[number], tested.subject_of_sample
            shares.append(subject_shares(subject))
            logits = logits.double() / temperature
            for rule in RULES:
                log_weights = by_rule(logits, log_prior, rule)
                top[rule].append(log_weights.exp().amax(1).cpu())
                own[rule].append(log_weights[:, number])
            strange.append(strangeness(x, inputs))
            if len(log_prior) <= MOST_CLIENTS:
                kept.append(logits)
        strangest = max(float(strangeness(x, inputs).max()) for x, _, _ in self._held_out if len(x))
        reference = drift_reference(torch.cat(kept), log_prior, torch.cat(strange)) if kept else None
        tops = {rule: torch.cat(parts) for rule, parts in top.items()}
        owns = {rule: (torch.cat(parts), torch.cat(shares)) for rule, parts in own.items()}
        rough = [values for client in self.clients if len(values := training_roughness(client).double())]
        # The least by its inverse, as a deployed site tells it: both ways give the same bits.
        extremes = [(1 / float((1 / values).max()), float(values.max())) for values in rough]
        least, most = ([extreme[side] for extreme in extremes] for side in (0, 1))
        roughness = RoughnessRange(min(least), max(most)) if extremes else None
        return Confidence(tops, owns, strangest, reference, roughness)

    @cached_property
    def _held_out(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The training samples that some fit held out, and whom they are of. Crops of a sample are of one subject."""
        out = []
        for x, z, client in zip(self.rows, self.logits, self.clients, strict=True):
            mask, subject = ~z[:, 0].isnan(), client.train.subject_of_sample
            out.append((x[mask], z[mask], subject.repeat(len(x) // len(subject))[mask.cpu()]))
        return out


def _joined(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All clients' logits, and the clients that they belong to."""
    origin = [torch.full((len(z),), number, device=z.device) for number, z in enumerate(logits)]
    return torch.cat(list(logits)).double(), torch.cat(origin)


def calibrate(held_out: HeldOutRouter, log_prior: Tensor, inputs: DecorrelatedInputs | None = None) -> Calibration:
    """The calibration of a router whose strangeness is measured on these inputs."""
    temperature = solve_temperature(held_out.slopes)
    weights = held_out.confidence(temperature, log_prior, inputs)
    confidence: dict[str, tuple[float, ...]] = {}
    conformal: dict[str, float] = {}
    for rule in RULES:
        top = weights.top[rule]
        confidence[rule] = tuple(quantiles(top, torch.linspace(0, 1, 101, dtype=top.dtype)).tolist())
        conformal |= {f"{rule}_{miss}": conformal_threshold(*weights.own[rule], miss) for miss in MISSES}
    rough = weights.roughness
    return Calibration(
        temperature,
        confidence,
        conformal,
        STRANGER * weights.strangest,
        weights.reference,
        tested=True,
        roughness=None if rough is None else rough.widened(STRANGER),
    )


def quantiles(values: Tensor, grid: Tensor) -> Tensor:
    """As torch.quantile, which refuses more than 16 million values."""
    ordered = values.sort().values
    place = grid * (len(ordered) - 1)
    low = place.long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
