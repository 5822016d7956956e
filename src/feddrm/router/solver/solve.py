"""The exact federated fit: any softmax regression whose loss is a sum over clients, solved as if pooled.

With features frozen, the density ratio model is a multinomial logistic regression of the client on
the features, and its loss is a sum over clients. So the server sends the parameters, every client
returns the loss and gradient of its own samples, and the optimum is that of the pooled data: no
sample and no label leaves a client. The same solver serves classes and (client, class) pairs.

Client half: :func:`client_sums`, :func:`client_moments` (once), :func:`client_gradient` (every
round), :func:`client_scores` (validation). Server half: :func:`add`, :class:`Scaler`,
:class:`Whitening`, :func:`first_state`, :func:`advance`. Both are pure and talk in plain dicts of
tensors, so the same functions run in one process or over a network. :func:`solve` is the loop of
both in one process.

The server runs L-BFGS. With second moments its first guess of the Hessian is
``curvature * moments + ridge``, after Boehning's bound (1992), which lets few rounds suffice; without
them a multiple of the identity. Client data may be float32; the server's algebra is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.errors import SettingError
from feddrm.router.solver.client_statistics import (
    BlockDiagonal,
    ClientSums,
    Sample,
    client_gradient,
    client_moments,
    client_scores,
    client_sums,
    logits_at,
)
from feddrm.router.solver.lbfgs import FitState, advance, first_state, objective, round_zero
from feddrm.router.solver.problem import Problem, Scaler, Whitening, add

__all__ = [
    "BlockDiagonal",
    "ClientSums",
    "Fit",
    "FitState",
    "Problem",
    "Sample",
    "Scaler",
    "Whitening",
    "add",
    "advance",
    "client_gradient",
    "client_moments",
    "client_scores",
    "client_sums",
    "first_state",
    "logits_at",
    "moments_of",
    "objective",
    "pooled",
    "round_zero",
    "scaler_of",
    "solve",
]


@dataclass(frozen=True, eq=False)
class Fit:
    """What came out: the point [outputs, d + 1] and how it was reached."""

    point: Tensor
    loss: float
    rounds: int
    converged: bool


def pooled(samples: Sequence[Sample]) -> Sample:
    """Local clients as one: sums over clients are all the solver needs, and one product is quicker than many."""
    offsets = [sample.offset for sample in samples if sample.offset is not None]
    return Sample(
        torch.cat([sample.x for sample in samples]),
        torch.cat([sample.y for sample in samples]),
        torch.cat(offsets) if offsets else None,
    )


def moments_of(samples: Sequence[Sample]) -> Whitening:
    """The whitening of local clients."""
    return Whitening.of(add([client_moments(sample.x) for sample in samples]))


def scaler_of(features: Sequence[Tensor]) -> Scaler:
    """The standardisation of local clients."""
    return Scaler.of(add([client_sums(x) for x in features]))


def solve(
    problem: Problem,
    samples: Sequence[Sample | BlockDiagonal],
    whitening: Whitening | None = None,
    *,
    start: Tensor | FitState | None = None,
    rounds: int = 60,
    tolerance: float = 1e-7,
    watch: Callable[[FitState], None] | None = None,
) -> Fit:
    """Ask, advance, repeat: until the next step promises less than ``tolerance``, or for ``rounds``.

    ``start`` is a point, or a state to go on from.
    """
    if rounds < 1:
        raise SettingError(f"rounds={rounds}: give at least one")
    like = samples[0].x
    state = start if isinstance(start, FitState) else first_state(problem, len(samples), like=like, start=start)
    noise = 1e-12 if like.dtype == torch.float64 else 1e-6
    for _ in range(rounds):
        messages = {i: client_gradient(sample, state.point) for i, sample in enumerate(samples)}
        state = advance(problem, state, messages, whitening, tolerance, noise)
        if watch is not None:
            watch(state)
        if bool(state.done):
            break
    loss, _ = objective(problem, state.at, state.losses, state.gradients, state.counts)
    return Fit(state.at, float(loss), int(state.rounds), bool(state.done))
