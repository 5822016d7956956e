"""The exact fit to samples that are here, and how several clients are pooled.

With frozen features the density ratio model is a multinomial logistic regression of the client on the features.
Its loss is a sum over clients. So the server sends the parameters, every client returns the loss and gradient of
its own samples, and the optimum is that of the pooled data. No sample and no label leaves a client. The same
rounds fit classes and pairs of client and class.

Client data may be float32; the server's algebra is float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.router.solver.client_statistics import (
    BlockDiagonal,
    ClientSums,
    Sample,
    client_gradient,
    client_moments,
    client_sums,
)
from feddrm.router.solver.lbfgs import FitState, Minimisation, Watch, first_state, minimise, objective
from feddrm.router.solver.problem import Problem, Scaler, Whitening, add

TOGETHER = 100  # clients whose Gram matrix is computed at once, where there are more


@dataclass(frozen=True, eq=False)
class Fit:
    """The fitted point [outputs, d + 1], its loss, and how it was reached."""

    point: Tensor
    loss: float
    rounds: int
    converged: bool

    @classmethod
    def of(cls, problem: Problem, state: FitState) -> Fit:
        """The fit that a state has reached."""
        loss, _ = objective(problem, state.iterate, state.losses, state.gradients, state.counts)
        return cls(state.iterate, float(loss), int(state.rounds), bool(state.done))


def noise_of(dtype: torch.dtype) -> float:
    """The relative error of losses that are computed from features of this type."""
    return 1e-12 if dtype == torch.float64 else 1e-6


def solve(
    problem: Problem,
    samples: Sequence[Sample | BlockDiagonal],
    whitening: Whitening | None = None,
    *,
    start: Tensor | None = None,
    rounds: int | None = None,
    tolerance: float = 1e-7,
    watch: Watch | None = None,
) -> Fit:
    """Fit one problem to samples that are here, from zero or from the point ``start``."""
    like = samples[0].x
    state = first_state(problem, len(samples), like=like, start=start)

    def gradients(trials: Mapping[str, Tensor]) -> dict[str, dict[int, ClientSums]]:
        return {key: {i: client_gradient(s, point) for i, s in enumerate(samples)} for key, point in trials.items()}

    fits = {"fit": Minimisation(problem, whitening, state)}
    noise = noise_of(like.dtype)
    states = minimise(fits, gradients, rounds=rounds, tolerance=tolerance, noise=noise, watch=watch)
    return Fit.of(problem, states["fit"])


def pooled(samples: Sequence[Sample]) -> Sample:
    """Several clients as one. The solver needs sums only, and one large product is faster than many small ones."""
    offsets = [sample.offset for sample in samples if sample.offset is not None]
    return Sample(
        torch.cat([sample.x for sample in samples]),
        torch.cat([sample.y for sample in samples]),
        torch.cat(offsets) if offsets else None,
    )


def moments_of(features: Sequence[Tensor]) -> Whitening:
    """The whitening of several clients' standardised features."""
    return Whitening.of(add(client_moments(x) for x in _by_the_hundred(features)))


def scaler_of(features: Sequence[Tensor]) -> Scaler:
    """The standardisation of several clients' features."""
    return Scaler.of(add(client_sums(x) for x in _by_the_hundred(features)))


def _by_the_hundred(features: Sequence[Tensor]) -> Iterator[Tensor]:
    """Many clients by the hundred: to add a thousand Gram matrices takes longer than to compute one."""
    if len(features) <= TOGETHER:
        return iter(features)
    return (torch.cat(list(features[start : start + TOGETHER])) for start in range(0, len(features), TOGETHER))
