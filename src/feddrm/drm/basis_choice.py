"""The choice of a basis by cross-validated likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats, as_rows, evaluate_basis
from feddrm.drm.logistic import FeatureWhitening, log_softmax, maximise
from feddrm.errors import FeddrmError
from feddrm.typed_settings import typed_arguments

CANDIDATES = ("identity", "normal", "gamma", "lognormal", "beta", "polynomial(3)")
FOLDS = 5


@dataclass(frozen=True)
class BasisChoice:
    """The held-out log likelihood of every candidate per observation; ``name`` is the largest one's."""

    name: str
    scores: Mapping[str, float]


@typed_arguments
def choose_basis(
    samples: Sequence[Any],
    candidates: Sequence[str] = CANDIDATES,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> BasisChoice:
    """Fit every candidate without one fifth of the observations, five times, and score what was left out.

    The dual likelihood has the same observations for every basis, so its held-out values can be compared. A candidate
    that is not defined on the samples (a logarithm of a negative number), or that has no finite fit, is left out.
    ``names`` are those of the populations, 1, 2, ... by default.
    """
    rows = [as_rows(sample) for sample in samples]
    names = tuple(names or (str(i + 1) for i in range(len(rows))))
    for name, part in zip(names, rows, strict=True):
        if len(part) < FOLDS:
            raise FeddrmError(
                f"population '{name}' has {len(part)} observations, too few to hold out a fifth of them for the choice "
                f"of a basis: give at least {FOLDS}, or name the basis"
            )
    owner = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    rng = np.random.default_rng(seed)
    # Every fold has its share of every population.
    fold = np.concatenate([rng.permutation(np.arange(len(part)) % FOLDS) for part in rows])
    pooled = np.vstack(rows)
    scores = {}
    for name in candidates:
        try:
            scores[name] = _held_out(evaluate_basis(name, pooled), owner, fold, names)
        except FeddrmError as error:
            last = error
    if not scores:
        raise FeddrmError(f"no basis can be chosen for these samples: name one; the last that was tried: {last}")
    return BasisChoice(max(scores, key=lambda name: scores[name]), scores)


def _held_out(features: Floats, owner: NDArray[np.intp], fold: NDArray[np.intp], names: tuple[str, ...]) -> float:
    total = 0.0
    for left_out in range(FOLDS):
        seen = fold != left_out
        whitening = FeatureWhitening.of(features[seen], tolerate_dependence=False)
        size = 1 + whitening.directions.shape[1]
        optimum = maximise(whitening.design(features[seen]), owner[seen], names, np.zeros((size, size)))
        logs = log_softmax(whitening.design(features[~seen]) @ optimum.coefficients.T)
        total += float(np.take_along_axis(logs, owner[~seen][:, None], 1).sum())
    return total / len(owner)
