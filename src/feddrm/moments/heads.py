"""Heads in closed form from moments: ridge regression, linear discriminant, and the choice of the ridge.

A head is a point [outputs, d + 1] on standardised features, the bias last. The ridge is the penalty of the mean squared
error: scikit-learn's alpha is ridge * n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import cast

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.moments.moments import Moments, MomentTarget

SQUARED_RIDGES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
Heads = dict[MomentTarget, Tensor]
Fold = tuple[Moments, Moments]  # of the samples that a fit sees, and of those that it does not
TARGETS: tuple[MomentTarget, ...] = ("client", "class")
ABSENT = 0.5  # samples that an output without any is given, so that it is unlikely and not impossible


def ridge_heads(moments: Moments, ridge: float) -> Heads:
    """Ridge regression of the indicators of clients and of classes, with an intercept."""
    factor = _factor(moments.scatter / moments.count, ridge)
    groups = {target: moments.by(target) for target in TARGETS}
    cross = torch.cat([sums - counts[:, None] * moments.mean for counts, sums in groups.values()]) / moments.count
    weights = torch.split(torch.cholesky_solve(cross.T, factor).T, [len(counts) for counts, _ in groups.values()])
    return {
        target: _with_bias(weight, counts / moments.count - weight @ moments.mean)
        for (target, (counts, _)), weight in zip(groups.items(), weights, strict=True)
    }


def ridge_head(moments: Moments, target: MomentTarget, ridge: float) -> Tensor:
    """Ridge regression of the indicators of clients or of classes."""
    return ridge_heads(moments, ridge)[target]


def discriminant_head(moments: Moments, target: MomentTarget, ridge: float) -> Tensor:
    """Linear discriminant: Gaussians with one covariance, to whose diagonal the ridge is added."""
    counts, sums = moments.by(target)
    means = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), moments.mean)
    apart = means - moments.mean
    within = moments.scatter - apart.T @ (counts[:, None] * apart)
    weight = torch.cholesky_solve(means.T, _factor(within / moments.count, ridge)).T
    prior = (counts.clamp(min=ABSENT) / moments.count).log()
    return _with_bias(weight, prior - (weight * means).sum(1) / 2)


def ridge_correction(moments: Moments, head: Tensor, ridge: float) -> Tensor:
    """A client's change of the class head: ridge regression of what the head leaves, from its own moments."""
    counts, sums = moments.by("class")
    weight, bias = head[:, :-1], head[:, -1]
    left = (sums - counts[:, None] * moments.mean - weight @ moments.scatter) / moments.count
    change = torch.cholesky_solve(left.T, _factor(moments.scatter / moments.count, ridge)).T
    return _with_bias(change, counts / moments.count - bias - (weight + change) @ moments.mean)


def own_corrections(folds: Sequence[Fold], heads: Sequence[Tensor], head: Tensor) -> list[Tensor]:
    """A client's :func:`ridge_correction` of ``head`` with the ridge that is best on its own held-out samples.

    After it those of ``heads``, which were fitted without each fold. They are zero if no ridge beats the head itself.
    ``folds`` are the client's own moments, fitted and held out. The client needs nothing of the others.
    """
    none = [torch.zeros_like(head)] * (1 + len(folds))
    if any(fitted.count < 1 for fitted, _ in folds):
        return none
    path, changes = [], {math.inf: none[1:]}
    for ridge in (math.inf, *SQUARED_RIDGES):
        if ridge < math.inf:
            changes[ridge] = [ridge_correction(fitted, h, ridge) for h, (fitted, _) in zip(heads, folds, strict=True)]
        changed = [h + change for h, change in zip(heads, changes[ridge], strict=True)]
        path.append((ridge, sum(squared_loss(h, held, "class") for h, (_, held) in zip(changed, folds, strict=True))))
        if len(path) > 2 and path[-1][1] > path[-2][1]:
            break
    chosen = _best(path).ridge
    return none if chosen == math.inf else [ridge_correction(add(*folds[0]), head, chosen), *changes[chosen]]


def prior_corrections(folds: Sequence[Fold], head: Tensor, pooled: Tensor) -> list[Tensor]:
    """A client's change of a head's biases: its class frequencies in place of all clients'. Then without each fold.

    ``pooled`` are the counts [classes] of all clients. One pooled sample is added, so that no class is impossible.
    """
    prior = pooled.clamp(min=ABSENT) / pooled.clamp(min=ABSENT).sum()
    changes = []
    for moments in (add(*folds[0]), *(fitted for fitted, _ in folds)):
        own = moments.by("class")[0]
        change = torch.zeros_like(head)
        change[:, -1] = ((own + prior) / (own.sum() + 1) / prior).log()
        changes.append(change)
    return changes


def squared_loss(head: Tensor, moments: Moments, target: MomentTarget) -> float:
    """The sum of squared errors of the indicators, which follows from the moments of the samples."""
    counts, sums = moments.by(target)
    weight, bias = head[:, :-1], head[:, -1]
    own = (weight * sums).sum() + (bias * counts).sum()
    spread = ((weight @ moments.scatter) * weight).sum()
    return float(moments.count - 2 * own + spread + moments.count * (weight @ moments.mean + bias).square().sum())


@dataclass(frozen=True)
class RidgeChoice:
    """The ridge with the least held-out squared error per sample, and all that were tried."""

    ridge: float
    loss: float
    path: tuple[tuple[float, float], ...]


def choose_ridges(
    folds: Sequence[Fold], ridges: Sequence[float], solved: dict[float, list[Heads]] | None = None
) -> dict[MomentTarget, RidgeChoice]:
    """For clients and for classes the ridge with the least squared error on what each fold holds out.

    A fold is the moments that are fitted and those that are held out. Ridges go from strong to weak until the error
    rises for both targets. One factorisation of a fold's Gram matrix serves both. ``solved`` keeps the folds' heads by
    ridge: those that it has are not computed again.
    """
    solved = {} if solved is None else solved
    paths: dict[MomentTarget, list[tuple[float, float]]] = {target: [] for target in TARGETS}
    count = sum(held_out.count for _, held_out in folds)
    for ridge in ridges:
        heads = solved[ridge] = solved.get(ridge) or [ridge_heads(fitted, ridge) for fitted, _ in folds]
        for target, path in paths.items():
            errors = (squared_loss(head[target], held, target) for head, (_, held) in zip(heads, folds, strict=True))
            path.append((ridge, sum(errors) / count))
        if all(len(path) > 1 and path[-1][1] > path[-2][1] for path in paths.values()):
            break
    return {target: _best(path) for target, path in paths.items()}


def _best(path: Sequence[tuple[float, float]]) -> RidgeChoice:
    ridge, loss = min(path, key=lambda step: step[1])
    return RidgeChoice(ridge, loss, tuple(path))


def _factor(covariance: Tensor, ridge: float) -> Tensor:
    """The Cholesky factor of covariance + ridge, which takes the place of covariance; one that has none is refused."""
    width = len(covariance)
    covariance.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    pivots = factor.diagonal().square()
    if bool(failed) or not float(pivots.min()) > width * torch.finfo(covariance.dtype).eps * float(pivots.max()):
        raise FeddrmError(
            f"the Gram matrix of {width} features is singular with ridge={ridge:g} (features that follow from "
            "others, or fewer samples than features): give a larger ridge (--ridge 0.01)"
        )
    return cast(Tensor, factor)


def _with_bias(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias[:, None]], dim=1)
