"""Clients come and go without retraining: the trunk stays, columns of the router change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.registry import nearest
from feddrm.router.router import Router
from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.problem import Problem, Whitening
from feddrm.router.solver.solve import Fit, solve


def leave(router: Router, name: str) -> Router:
    """Without one client: its column goes.

    Exact: the ratios between the remaining clients do not depend on who else is there, so the
    renormalised weights are those of the model without it. Calibration is kept as measured.
    """
    if name not in router.names:
        raise FeddrmError(
            f"unknown client '{name}'{nearest(name, router.names)} (there are: {', '.join(router.names)})"
        )
    if router.clients <= 2:
        raise FeddrmError(f"'{name}' cannot leave: one client alone needs no router")
    kept = [i for i, known in enumerate(router.names) if known != name]
    return replace(
        router,
        names=tuple(router.names[i] for i in kept),
        weight=router.weight[kept],
        bias=router.bias[kept],
        log_prior=router.log_prior[kept].log_softmax(0),
    )


def join(
    point: Tensor,
    problem: Problem,
    samples: Sequence[Sample],
    whitening: Whitening | None,
    *,
    rounds: int = 60,
    tolerance: float = 1e-7,
) -> Fit:
    """The router's point [m + 1, d + 1] after a client has joined; ``samples`` are all clients', its own last.

    The fit goes on from the old columns, the new one starting as the average client, until it is at
    the optimum of all m + 1: the same as a fit from nothing, sooner. Features keep their old scale.
    """
    start = torch.cat([point, torch.zeros_like(point[:1])])
    start[-1, -1] = torch.log(torch.tensor(len(samples[-1]) / max(1, sum(len(s) for s in samples[:-1]))))
    return solve(problem, samples, whitening, start=start - start.mean(0), rounds=rounds, tolerance=tolerance)
