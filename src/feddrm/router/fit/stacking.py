"""Stacking: a weighted sum of several models' class log-probabilities, with weights fitted on held-out samples.

The fit is convex with one weight per model, so Newton's method solves it exactly. Its loss is a sum over clients:
each client returns the loss, slope and curvature in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import add

RIDGE, STEPS = 1e-4, 50  # of the fit: the pull towards equal weights, and its steps at most
FLOOR = -20.0  # of log-probabilities: a class that a model excludes is unlikely, not impossible


@dataclass(frozen=True)
class Stack:
    """The weights by model. The answer is the softmax of the weighted log-probabilities."""

    weights: Mapping[str, float]

    def __call__(self, models: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities [N, K] from every model's [N, K]."""
        missing = [name for name in self.weights if name not in models]
        if missing:
            raise FeddrmError(f"the stack needs the answers of '{missing[0]}': give them, or fit it without")
        mixed = sum(weight * models[name].clamp(min=FLOOR) for name, weight in self.weights.items())
        assert isinstance(mixed, Tensor)
        return mixed.log_softmax(-1)


def client_curves(models: Tensor, y: Tensor, weights: Tensor) -> ClientSums:
    """Loss, slope and curvature in the weights, for log-probabilities [models, n, K]; the client's half of the fit."""
    z = models.double().clamp(min=FLOOR).permute(1, 2, 0)  # [n, K, models]
    log_p = (z @ weights).log_softmax(1)
    p = log_p.exp()[:, :, None]
    mean = (p * z).sum(1)
    own = z[torch.arange(len(y), device=y.device), y]
    return {
        "count": torch.tensor(float(len(y)), dtype=torch.float64, device=z.device),
        "loss": -log_p.gather(1, y[:, None]).sum(),
        "slope": (mean - own).sum(0),
        "curvature": torch.einsum("nkc,nkd->cd", p * z, z) - mean.T @ mean,
    }


def solve_stack(names: Sequence[str], curves: Callable[[Tensor], ClientSums]) -> Stack:
    """Newton's method on the added :func:`client_curves`; the server's half of the fit."""
    start = torch.full((len(names),), 1 / len(names), dtype=torch.float64)
    weights = start

    def total(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sums = {key: value.cpu() for key, value in curves(at).items()}
        away = at - start
        return (
            sums["loss"] / sums["count"] + RIDGE / 2 * away.square().sum(),
            sums["slope"] / sums["count"] + RIDGE * away,
            sums["curvature"] / sums["count"] + RIDGE * torch.eye(len(names)).to(at),
        )

    loss, slope, bend = total(weights)
    for _ in range(STEPS):
        step = torch.linalg.solve(bend, slope)
        if float((slope * step).sum()) < 1e-14:
            break
        size = 1.0
        while float((trial := total(weights - size * step))[0]) > float(loss) and size > 1e-6:
            size /= 2
        weights = weights - size * step
        loss, slope, bend = trial
    return Stack(dict(zip(names, weights.tolist(), strict=True)))


@dataclass(frozen=True, eq=False)
class LocalClasses:
    """Held-out class probabilities by model and client."""

    stacks: Mapping[str, Sequence[str]]
    answers: Mapping[str, Sequence[Tensor]]
    labels: Sequence[Tensor]

    def curves(self, models: Sequence[str]) -> Callable[[Tensor], ClientSums]:
        clients = []
        for number, y in enumerate(self.labels):
            rows = torch.stack([self.answers[name][number] for name in models])
            seen = ~rows[0, :, 0].isnan()
            if bool(seen.any()):
                clients.append((rows[:, seen], y[seen]))
        return lambda weights: add([client_curves(rows, y, weights.to(y.device)) for rows, y in clients])
