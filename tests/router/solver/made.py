"""Made samples for the solver's tests, and the optimum that SciPy finds on them."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from feddrm.router.solver.client_statistics import Sample, client_scores
from feddrm.router.solver.problem import Problem, add
from feddrm.router.solver.solve import pooled, scaler_of


def clients_with_overlap(
    clients: int = 4, features: int = 12, seed: int = 0, sizes: tuple[int, ...] = (60, 150, 90, 40)
) -> list[Sample]:
    """Correlated features that overlap between clients, standardised together."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(features, features, generator=g, dtype=torch.float64) * torch.logspace(
        0, -1.5, features, dtype=torch.float64
    )
    raw = []
    for size in sizes[:clients]:
        mean = 0.5 * torch.randn(features, generator=g, dtype=torch.float64)
        raw.append((torch.randn(size, features, generator=g, dtype=torch.float64) + mean) @ mix)
    scaler = scaler_of(raw)
    return [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(raw)]


def pooled_optimum(problem: Problem, samples: list[Sample]) -> tuple[float, Tensor]:
    """The pooled optimum by SciPy, which knows nothing of clients."""
    everyone = pooled(samples)
    shape = (problem.outputs, problem.features + 1)

    def f(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(flat.reshape(shape)).requires_grad_()
        z = everyone.x @ point[:, :-1].T + point[:, -1]
        z = z if everyone.offset is None else z + everyone.offset
        loss = torch.nn.functional.cross_entropy(z, everyone.y)
        p = torch.eye(problem.outputs, dtype=torch.float64) if problem.precision is None else problem.precision
        loss = loss + problem.ridge / 2 * torch.trace(point[:, :-1].T @ p @ point[:, :-1])
        loss = loss + problem.bias_ridge / 2 * point[:, -1] @ p @ point[:, -1]
        (gradient,) = torch.autograd.grad(loss, point)
        return float(loss.detach()), gradient.numpy().ravel()

    found = minimize(
        f,
        np.zeros(shape).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20000, "maxfun": 40000, "ftol": 1e-17, "gtol": 1e-10},
    )
    return float(found.fun), torch.from_numpy(found.x.reshape(shape))


def accuracy_at(samples: list[Sample], point: Tensor) -> float:
    total = add([client_scores(sample, point) for sample in samples])
    return float(total["correct"] / total["count"])
