"""Basis functions: the log density ratios are linear in them. The constant is not among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import nearest

Floats = NDArray[np.float64]
LARGEST = 1e150  # its square is still finite
Basis = str | Callable[[Any], ArrayLike]


def _normal(x: Floats) -> Floats:
    i, j = np.triu_indices(x.shape[1])
    with np.errstate(over="ignore"):  # evaluate_basis refuses infinite values
        return np.hstack([x, x[:, i] * x[:, j]])


def _gamma(x: Floats) -> Floats:
    if (low := x.min()) <= 0:
        raise FeddrmError(f"the gamma basis takes logarithms, but a sample is {low:g}: shift it above 0, or use normal")
    return np.hstack([x, np.log(x)])


def _normal_terms(columns: list[str]) -> list[str]:
    i, j = np.triu_indices(len(columns))
    pairs = zip(i, j, strict=True)
    return columns + [f"{columns[a]}^2" if a == b else f"{columns[a]}*{columns[b]}" for a, b in pairs]


# Every basis and the names of its functions. Log density ratios of normal populations are linear in (x, x^2), or in all
# products of several columns; those of gamma populations in (x, log x).
BASES: dict[str, tuple[Callable[[Floats], Floats], Callable[[list[str]], list[str]]]] = {
    "normal": (_normal, _normal_terms),
    "gamma": (_gamma, lambda columns: columns + [f"log {name}" for name in columns]),
    "identity": (lambda x: x, lambda columns: columns),
}


def check_basis(basis: Basis) -> None:
    """Refuse an unknown name, before any file is read."""
    if isinstance(basis, str) and basis not in BASES:
        known = ", ".join(BASES)
        raise SettingError(f"unknown basis '{basis}'{nearest(basis, BASES)} (known: {known}, or any function)")


def evaluate_basis(basis: Basis, sample: Any) -> Floats:
    """One row per observation. A function gets the sample as it was given: numbers, rows or images."""
    if isinstance(basis, str):
        features = BASES[basis][0](as_rows(sample))
    else:
        features = np.asarray(basis(sample), dtype=np.float64)
        features = features[:, None] if features.ndim == 1 else features
        if features.ndim != 2 or len(features) != len(sample):
            raise FeddrmError(
                f"the basis made an array of shape {features.shape} from {len(sample)} observations: "
                f"it must return one row for each"
            )
    if not (np.abs(features) < LARGEST).all():
        raise FeddrmError(
            f"the basis is not finite, or beyond {LARGEST:g}, on this sample: scale the data, or choose another basis"
        )
    return features


def terms(basis: Basis, columns: list[str], size: int) -> list[str]:
    """The name of each basis function."""
    if isinstance(basis, str):
        return BASES[basis][1](columns)
    return [f"h{i + 1}" for i in range(size)]


def as_rows(sample: Any) -> Floats:
    """Numbers as a table with one row per observation."""
    try:
        x = np.asarray(sample, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FeddrmError("a sample must be an array of numbers, one row per observation") from error
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise FeddrmError(f"a sample has shape {x.shape}: give one row per observation, or a function as basis")
    if not np.isfinite(x).all():
        raise FeddrmError("a sample has a value that is missing or infinite: remove or correct it")
    return x
