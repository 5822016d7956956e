"""Clients join and leave a fitted router without retraining: the trunk stays, columns of the router change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.errors import FeddrmError
from feddrm.evaluation import Queries
from feddrm.registry import require_client
from feddrm.router.fit.calibration import calibrate
from feddrm.router.fit.cohort import FitRequest, Trunk
from feddrm.router.fit.fit_router import decorrelated_inputs
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.fit.selection import solve_requests
from feddrm.router.router import Router
from feddrm.router.settings import Holdout, RouterSettings
from feddrm.router.solver.problem import Problem
from feddrm.threads import router_kernels


def leave(router: Router, name: str) -> Router:
    """The router without one client.

    The density ratios between the remaining clients stay as they were, so the renormalised weights are the
    probabilities given that a query is not of this client. A new fit would lack its samples and differ a little. The
    calibration stays as measured, but for the reference of drift, which has this client's samples.
    """
    require_client(name, router.names)
    if router.clients <= 2:
        raise FeddrmError(f"'{name}' cannot leave: one client alone needs no router")
    remaining = [i for i, known in enumerate(router.names) if known != name]
    return replace(
        router,
        names=tuple(router.names[i] for i in remaining),
        weight=router.weight[remaining],
        bias=router.bias[remaining],
        log_prior=router.log_prior[remaining].log_softmax(0),
        calibration=replace(router.calibration, reference=None),
        competence=None if router.competence is None else router.competence[remaining],
        means=None if router.means is None else router.means[remaining],
    )


def joined_start(point: Tensor, sizes: Sequence[int]) -> Tensor:
    """The old columns with one more: the average client, with a bias for the new client's number of samples.

    A fit from there ends at the optimum of all m + 1 clients: the same as a fit from zero, in fewer rounds.
    """
    start = torch.cat([point, torch.zeros_like(point[:1])])
    start[-1, -1] = torch.log(torch.tensor(sizes[-1] / max(1, sum(sizes[:-1]))))
    return start - start.mean(0)


def join_client(
    router: Router,
    federation: Federation,
    ridge: float,
    settings: RouterSettings | None = None,
    test: Queries | None = None,
) -> Router:
    """The router after the last client of ``federation`` has joined, calibrated anew.

    The other clients of the federation are the router's own, in their order. The router keeps its recipe, the scale
    of its features and its ridge. ``test`` are the test samples; without it, those of the federation.
    """
    if federation.names[:-1] != router.names:
        raise FeddrmError(
            f"the router's clients are {', '.join(router.names)}, the federation's {', '.join(federation.names)}: "
            "give the same clients in the same order, and the new one last"
        )
    settings = settings or RouterSettings()
    settings.check()
    cohort = LocalCohort(federation, settings, test=test)
    facts = cohort.facts
    holdout = settings.holdout or Holdout.suggested(facts.samples)
    with router_kernels(facts.samples):
        trunk = Trunk(router.net, dict(router.leaves))
        cohort.measure(router.recipe, trunk, holdout)
        design = cohort.scaled_design(router.recipe, router.scaler)
        problem = Problem(len(facts.names), design.width, ridge)
        point = torch.cat([router.weight, router.bias[:, None]], dim=1).double()
        # Folds start at zero: the old columns have seen the samples that the folds hold out.
        requests = {str(fold): FitRequest(design, "client", problem, fold) for fold in range(holdout.used)}
        requests["all"] = FitRequest(design, "client", problem, None, joined_start(point, facts.sizes))
        states = solve_requests(cohort, requests, settings.rounds, settings.tolerance)
        fitted = states.pop("all").iterate
        decorrelated = decorrelated_inputs(cohort, trunk, design)
        held_out = cohort.held_out_router(design, [state.iterate for state in states.values()], fitted)
        return replace(
            router,
            names=facts.names,
            weight=fitted[:, :-1].to(router.weight),
            bias=fitted[:, -1].to(router.bias),
            log_prior=facts.log_prior.to(router.log_prior),
            calibration=replace(calibrate(held_out, facts.log_prior, decorrelated), reference=None),
            competence=None,  # the new client has brought no labels to judge its answers by
            means=torch.stack([rows.mean(0) for rows in design.rows]),
            decorrelated=None if decorrelated is None else decorrelated.to(router.weight),
        )
