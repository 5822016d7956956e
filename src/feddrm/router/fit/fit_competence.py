"""Fitting the competence: how probable it is that each client's answer about a query is right.

One logistic regression per client on the router's features, all with one ridge. Its samples are judged: every client
has answered them, by a head that did not see them, and the answer was compared with the label
(docs/decisions/0015-competence-from-judged-samples.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.calibration import quantiles
from feddrm.router.fit.cohort import Cohort, FitRequest, HeldOutHeads, Judged
from feddrm.router.fit.fit_heads import HEAD_ROUNDS
from feddrm.router.fit.head_problems import STRENGTHS, clients_at_once, private_problem, probe_problem
from feddrm.router.fit.ridge_path import Chosen, RidgePath
from feddrm.router.fit.selection import FINE_ROUNDS, PATH_TOLERANCE, solve_requests
from feddrm.router.settings import MANY, PART_BYTES, SMALL, Holdout, RouterSettings
from feddrm.router.solver.client_statistics import BLOCK, ClientSums, Sample, client_scores, logits_at
from feddrm.router.solver.solve import solve

RIDGES = (10.0, 3.0, *STRENGTHS)  # the strongest leave every client its mean accuracy
FOLDS, FEW_FOLDS = 5, 2  # of the judged samples: all parts are held out in turn, or two if there are many samples


@dataclass(frozen=True, eq=False)
class FittedCompetence:
    """The log-odds of a right answer as a point [m, d + 1], the percentiles of the surest client's, and the choices."""

    point: Tensor
    confidence: tuple[float, ...]
    chosen: Mapping[str, Any]


def fit_competence(
    cohort: Cohort, design: DesignMatrix, heads: HeldOutHeads, holdout: Holdout, settings: RouterSettings
) -> FittedCompetence:
    """Fit on the router's features."""
    judged = cohort.judge(design, all_folds(cohort, heads, holdout, settings))
    chosen = choose_ridge(judged, design, settings.part_bytes)
    rounds = settings.rounds or HEAD_ROUNDS
    start = torch.stack(chosen.folds).mean(0)
    everyone = _samples(judged, slice(None))
    point = _fit(everyone, design, chosen.ridge, start, rounds, settings.tolerance, settings.part_bytes)
    rows = max(1, BLOCK[judged.x.device.type] // judged.right.shape[1])
    surest = [
        logits_at(x, odds_of_right(held_out)).sigmoid().amax(1)
        for fold, held_out in enumerate(chosen.folds)
        for x in torch.split(judged.x[judged.part == fold], rows)
    ]
    confidence = quantiles(torch.cat(surest).cpu(), torch.linspace(0, 1, 101, dtype=torch.float64))
    choices = {**chosen.as_dict(design.width), "judged": len(judged.x)}
    return FittedCompetence(odds_of_right(point), tuple(confidence.tolist()), choices)


def competence_left_out(cohort: Cohort, holdout: Holdout, settings: RouterSettings) -> str | None:
    """The line that says that the judged samples take too much memory; None if the competence is fitted."""
    samples = cohort.facts.samples * cohort.crops * holdout.used // holdout.parts
    copies = 1 + _folds(samples)  # one byte for every sample and client, once and for every fold
    size = copies * samples * len(cohort.facts.names)
    return settings.too_large("competence from the answers of all clients", size, cohort.like.device)


def choose_ridge(judged: Judged, design: DesignMatrix, part_bytes: int | None = None) -> Chosen:
    """The ridge with the least held-out loss, and the fits of every fold with it.

    Clients share nothing but the ridge, so it is chosen on MANY of them. The loss is a mean over clients: for more of
    them the ridge shrinks, so that it stays the same against each client's own loss.
    """
    folds = _folds(len(judged.x))
    clients = judged.right.shape[1]
    some = judged
    if clients > MANY:
        drawn = torch.randperm(clients, generator=torch.Generator().manual_seed(0))[:MANY]  # the same in every fit
        some = replace(judged, right=judged.right[:, drawn])
    path, parts = RidgePath(RIDGES, folds), _parts(some, folds)
    while (ridge := path.ridge) is not None:
        path.take(*_on_folds(parts, design, ridge, path.starts, part_bytes))
    if some is judged:
        return path.chosen
    ridge = path.chosen.ridge * some.right.shape[1] / clients
    whole = RidgePath([ridge], folds)
    whole.take(*_on_folds(_parts(judged, folds), design, ridge, whole.starts, part_bytes))
    return replace(whole.chosen, path=path.chosen.path)


def _folds(samples: int) -> int:
    return FOLDS if samples < SMALL else FEW_FOLDS


def _parts(judged: Judged, folds: int) -> list[tuple[Sample, Sample]]:
    """The samples outside and inside of every fold."""
    return [(_samples(judged, judged.part != fold), _samples(judged, judged.part == fold)) for fold in range(folds)]


def _on_folds(
    parts: Sequence[tuple[Sample, Sample]],
    design: DesignMatrix,
    ridge: float,
    starts: Sequence[Tensor | None],
    part_bytes: int | None,
) -> tuple[list[Tensor], list[ClientSums]]:
    """The fits without each fold, and their scores on it."""
    points = [
        _fit(outside, design, ridge, start, FINE_ROUNDS, PATH_TOLERANCE, part_bytes)
        for (outside, _), start in zip(parts, starts, strict=True)
    ]
    return points, [client_scores(inside, point) for (_, inside), point in zip(parts, points, strict=True)]


def _fit(
    samples: Sample,
    design: DesignMatrix,
    ridge: float,
    start: Tensor | None,
    rounds: int,
    tolerance: float,
    part_bytes: int | None,
) -> Tensor:
    """The point of all clients, fitted for as many at once as the solver's memory allows."""
    clients = samples.y.shape[1]
    most = part_bytes or PART_BYTES[samples.x.device.type]
    together = clients_at_once(most, 2, design.width)  # two outputs per client: wrong and right
    points = []
    for first in range(0, clients, together):
        some = Sample(samples.x, samples.y[:, first : first + together])
        number = some.y.shape[1]
        problem = private_problem(2, design.width, ridge, number, share=number / clients)
        own = None if start is None else start[2 * first : 2 * (first + number)]
        fit = solve(problem, [some], design.whitening, start=own, rounds=rounds, tolerance=tolerance)
        points.append(fit.point)
    return points[0] if len(points) == 1 else torch.cat(points)


def odds_of_right(point: Tensor) -> Tensor:
    """The log-odds [m, d + 1] of the fitted outputs [2 m, d + 1], which are wrong and right for every client."""
    wrong, right = point.view(-1, 2, point.shape[1]).unbind(1)
    return right - wrong


def all_folds(cohort: Cohort, heads: HeldOutHeads, holdout: Holdout, settings: RouterSettings) -> HeldOutHeads:
    """The heads of all folds. Those that the choice of ridges left out are fitted from zero, with the chosen ridges."""
    missing = range(len(heads.probes), holdout.used)
    if not missing:
        return heads
    problem = probe_problem(len(cohort.facts.classes), heads.design.width, heads.probe_ridge)
    requests = {str(fold): FitRequest(heads.design, "class", problem, fold) for fold in missing}
    states = solve_requests(cohort, requests, settings.rounds or FINE_ROUNDS, PATH_TOLERANCE)
    probes = [*heads.probes, *(state.iterate for state in states.values())]
    starts = [*heads.corrections, *([None] * len(requests))]
    if not heads.corrections:  # they stay with their clients, which fit those of all folds by themselves
        return replace(heads, probes=probes)
    corrections, _ = cohort.corrections(heads.design, probes).scores(heads.correction_ridge, starts)
    return replace(heads, probes=probes, corrections=corrections)


def _samples(judged: Judged, rows: Tensor | slice) -> Sample:
    """Right and wrong stay one byte each: the sums make numbers of them block by block."""
    return Sample(judged.x[rows], judged.right[rows])
