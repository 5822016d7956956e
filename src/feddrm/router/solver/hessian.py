"""Second derivatives of the loss: sent once by every client, they let a few rounds reach the optimum."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddrm.router.solver.client_statistics import ClientSums, Sample, logits_at
from feddrm.router.solver.problem import Problem

MOST_PARAMETERS = 4096  # beyond, a client would send more than 64 MB, and to factorise them takes minutes


def client_hessian(sample: Sample, point: Tensor) -> ClientSums:
    """Sums of second derivatives at a point: per pair of outputs the upper triangle of a weighted Gram matrix.

    Those of the last output follow: the probabilities add up to one.
    """
    x = torch.cat([sample.x, sample.x.new_ones(len(sample), 1)], dim=1).double()
    p = logits_at(sample.x, point, sample.offset).softmax(1)
    upper = _upper(x.shape[1]).to(x.device)
    rows = []
    for k in range(len(point) - 1):
        for other in range(k + 1):
            weight = p[:, k] * (float(k == other) - p[:, other])
            rows.append((x.T @ (weight[:, None] * x))[upper])
    count = torch.tensor(float(len(sample)), dtype=torch.float64, device=x.device)
    return {"count": count, "hessian": torch.stack(rows)}


def client_score_scatter(sample: Sample, point: Tensor) -> ClientSums:
    """Sums of products of the samples' scores around their mean, n / (n - 1) times; for standard errors.

    A score is the gradient of one sample's log-likelihood without the part of the first output.
    """
    x = torch.cat([sample.x, sample.x.new_ones(len(sample), 1)], dim=1).double()
    residual = -logits_at(sample.x, point, sample.offset).softmax(1)
    residual[torch.arange(len(sample), device=x.device), sample.y] += 1
    scores = (residual[:, 1:, None] * x[:, None, :]).flatten(1)
    centred = scores - scores.mean(0)
    return {"scatter": centred.T @ centred * (len(sample) / max(1, len(sample) - 1))}


@dataclass(frozen=True, eq=False)
class Hessian:
    """Second derivatives of the mean loss near the optimum, [outputs, d + 1, outputs, d + 1]."""

    values: Tensor
    _factors: dict[tuple[float, float], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: ClientSums, problem: Problem) -> Hessian:
        """From the added :func:`client_hessian` of a problem."""
        outputs, width = problem.outputs, problem.features + 1
        values = sums["hessian"].new_zeros(outputs, width, outputs, width)
        upper = _upper(width).to(values.device)
        rows = iter(sums["hessian"] / sums["count"])
        for k in range(outputs - 1):
            for other in range(k + 1):
                triangle = values.new_zeros(width, width).masked_scatter(upper, next(rows))
                values[k, :, other] = values[other, :, k] = triangle + triangle.triu(1).T
        values[-1] = -values[:-1].sum(0)
        values[:, :, -1] = -values[:, :, :-1].sum(2)
        return cls(values)

    def solve(self, problem: Problem, gradient: Tensor) -> Tensor:
        """Newton's step against a gradient [outputs, d + 1], with the problem's penalty."""
        key = problem.ridge, problem.bias_ridge
        if key not in self._factors:
            self._factors[key] = self._factor(problem)
        return torch.cholesky_solve(gradient.reshape(-1, 1), self._factors[key]).view_as(gradient)

    def _factor(self, problem: Problem) -> Tensor:
        outputs, width = self.values.shape[:2]
        matrix = self.values.reshape(outputs * width, -1).clone()
        penalty = torch.full((outputs, width), problem.ridge).to(matrix)
        penalty[:, -1] = problem.bias_ridge
        matrix.diagonal().add_(penalty.view(-1))
        # Equal weights of all outputs change no probability: any curvature there makes the matrix regular.
        bias = torch.arange(outputs, device=matrix.device) * width + width - 1
        matrix[bias[:, None], bias] += 1.0
        matrix.diagonal().add_(1e-12 * matrix.diagonal().max())
        factor: Tensor = torch.linalg.cholesky(matrix)
        return factor


def _upper(width: int) -> Tensor:
    """Which entries of a square matrix its upper triangle has."""
    return torch.ones(width, width, dtype=torch.bool).triu()
