"""Second derivatives of the loss: sent once by every client, they let a few rounds reach the optimum."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from feddrm.router.solver.client_statistics import ClientSums, Sample, logits_at
from feddrm.router.solver.problem import Problem, Whitening

MOST_PRODUCTS, ENOUGH = 20, 0.1  # of conjugate gradients: at most, and the share of the gradient's norm that is left
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


def client_score_scatter(sample: Sample, point: Tensor, subject: Tensor) -> ClientSums:
    """Sums of products of scores around their mean, G / (G - 1) times for G subjects; for standard errors.

    A score is the gradient of one sample's log-likelihood without the part of the first output. ``sample_scatter``
    takes samples as independent. ``scatter`` is of the sums over the samples of each ``subject`` [n], which may depend
    on each other (a cluster-robust variance). ``few`` is 1 if there are fewer subjects than an output has parameters.
    """
    x = torch.cat([sample.x, sample.x.new_ones(len(sample), 1)], dim=1).double()
    residual = -logits_at(sample.x, point, sample.offset).softmax(1)
    residual[torch.arange(len(sample), device=x.device), sample.y] += 1
    scores = (residual[:, 1:, None] * x[:, None, :]).flatten(1)
    centred = scores - scores.mean(0)
    numbers, place = torch.unique(subject.to(x.device), return_inverse=True)
    sums = centred
    if len(numbers) < len(sample):  # else another order of the samples would change the last bits
        sums = torch.zeros_like(centred[: len(numbers)]).index_add_(0, place, centred)
    factor = len(numbers) / max(1, len(numbers) - 1)
    few = torch.tensor(float(len(numbers) < point.shape[1]), dtype=torch.float64, device=x.device)
    return {"scatter": sums.T @ sums * factor, "sample_scatter": centred.T @ centred * factor, "few": few}


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


@dataclass(frozen=True, eq=False)
class SampledHessian:
    """Second derivatives of some samples at a point, for problems too large to hold those of all pairs of outputs.

    A product with them takes a small part of a round. So a step solves with them by conjugate gradients, and ten rounds
    reach an optimum that a hundred with the pooled moments alone do not reach.
    """

    x: Tensor  # [n, d] on the principal axes of all samples
    p: Tensor  # [n, outputs] probabilities at the point
    whitening: Whitening

    @classmethod
    def at(cls, point: Tensor, x: Tensor, whitening: Whitening) -> SampledHessian:
        """At a point [outputs, d + 1] on the features; ``x`` are samples on the axes."""
        return cls(x, logits_at(x, whitening.turn(point), precision=x.dtype).softmax(1), whitening)

    def solve(self, problem: Problem, gradient: Tensor) -> Tensor:
        """Nearly Newton's step: conjugate gradients, preconditioned by the second derivatives along every axis."""
        curvature = self.p * (1 - self.p)
        weights = (curvature.T @ self.x.square()).double() / len(self.x) + problem.ridge
        bias = curvature.mean(0, dtype=torch.float64)[:, None] + problem.bias_ridge + 1e-12
        scale = torch.cat([weights, bias], dim=1)
        rest = self.whitening.turn(gradient)
        step = torch.zeros_like(rest)
        direction = rest / scale
        first = size = (rest * direction).sum()
        if float(first) == 0:  # no slope, no step; the length of one would be 0 / 0
            return torch.zeros_like(gradient)
        for _ in range(MOST_PRODUCTS):
            product = self._times(problem, direction)
            length = size / (direction * product).sum()
            step += length * direction
            rest = rest - length * product
            scaled = rest / scale
            before, size = size, (rest * scaled).sum()
            if not float(size) > ENOUGH**2 * float(first):
                break
            direction = scaled + size / before * direction
        return self.whitening.turn(step, back=True)

    def _times(self, problem: Problem, direction: Tensor) -> Tensor:
        z = logits_at(self.x, direction, precision=self.x.dtype).mul_(self.p)
        z.addcmul_(self.p, z.sum(1, keepdim=True), value=-1).div_(len(self.x))
        product = torch.cat([(z.T @ self.x).double(), z.sum(0, dtype=torch.float64)[:, None]], dim=1)
        product += problem.penalty(direction)[1]
        product[:, -1] += direction[:, -1].mean()  # an equal change of all biases changes no probability: any curvature
        return product


def _upper(width: int) -> Tensor:
    """Which entries of a square matrix its upper triangle has."""
    return torch.ones(width, width, dtype=torch.bool).triu()
