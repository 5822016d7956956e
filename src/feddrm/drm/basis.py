"""Basis functions: the log density ratios are linear in them. The constant is not among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import nearest
from feddrm.typed_settings import typed_arguments

Floats = NDArray[np.float64]
LARGEST = 1e150  # its square is still finite
AUTO = "auto"
MOST_DEGREE = 6  # of a polynomial; higher powers are nearly dependent
Basis = str | Callable[[Any], ArrayLike]
BasisFunctions = tuple[Callable[[Floats], Floats], Callable[[list[str]], list[str]]]


def _normal(x: Floats) -> Floats:
    i, j = np.triu_indices(x.shape[1])
    with np.errstate(over="ignore"):  # evaluate_basis refuses infinite values
        return np.hstack([x, x[:, i] * x[:, j]])


def _logs(x: Floats, name: str) -> Floats:
    if (x <= 0).any():
        row, column = np.argwhere(x <= 0)[0]
        raise FeddrmError(
            f"the {name} basis takes logarithms, but observation {row + 1} is {x[row, column]:g}: shift the sample "
            f"above 0, or use normal"
        )
    return np.log(x)


def _gamma(x: Floats) -> Floats:
    return np.hstack([x, _logs(x, "gamma")])


def _lognormal(x: Floats) -> Floats:
    logs = _logs(x, "lognormal")
    return np.hstack([logs, logs**2])


def _beta(x: Floats) -> Floats:
    if (x >= 1).any():
        row, column = np.argwhere(x >= 1)[0]
        raise FeddrmError(
            f"the beta basis needs samples between 0 and 1, but observation {row + 1} is {x[row, column]:g}: scale the "
            f"sample, or use normal"
        )
    return np.hstack([_logs(x, "beta"), np.log1p(-x)])


def _polynomial(degree: int) -> BasisFunctions:
    def powers(x: Floats) -> Floats:
        with np.errstate(over="ignore"):  # evaluate_basis refuses infinite values
            return np.hstack([x**i for i in range(1, degree + 1)])

    def names(columns: list[str]) -> list[str]:
        return [name if i == 1 else f"{name}^{i}" for i in range(1, degree + 1) for name in columns]

    return powers, names


def _normal_terms(columns: list[str]) -> list[str]:
    i, j = np.triu_indices(len(columns))
    pairs = zip(i, j, strict=True)
    return columns + [f"{columns[a]}^2" if a == b else f"{columns[a]}*{columns[b]}" for a, b in pairs]


def _named(*patterns: str) -> Callable[[list[str]], list[str]]:
    return lambda columns: [pattern.format(name) for pattern in patterns for name in columns]


# Every basis and the names of its functions: what the log density ratios of the family are linear in. Those of normal
# populations are linear in (x, x^2), or in all products of several columns.
BASES: dict[str, BasisFunctions] = {
    "normal": (_normal, _normal_terms),
    "gamma": (_gamma, _named("{}", "log {}")),
    "lognormal": (_lognormal, _named("log {}", "(log {})^2")),
    "beta": (_beta, _named("log {}", "log(1 - {})")),
    "identity": (lambda x: x, _named("{}")),
    **{f"polynomial({degree})": _polynomial(degree) for degree in range(2, MOST_DEGREE + 1)},
}


@typed_arguments
def check_basis(basis: Basis) -> None:
    """Refuse an unknown name, before any file is read. ``auto`` is chosen and a formula is compiled at the fit."""
    if isinstance(basis, str) and basis not in (*BASES, AUTO) and not is_formula(basis):
        known = ", ".join([name for name in BASES if not name.startswith("poly")] + [f"polynomial(2 to {MOST_DEGREE})"])
        hint = nearest(basis, [*BASES, AUTO])
        raise SettingError(
            f"unknown basis '{basis}'{hint} (known: auto, {known}, a formula '~ log(x) + x', a function)"
        )


def is_formula(basis: Basis) -> bool:
    """Whether a basis is a formula on columns, such as ``~ log(x) + x``."""
    return isinstance(basis, str) and basis.lstrip().startswith("~")


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
    if not (fine := (np.abs(features) < LARGEST).all(1)).all():
        raise FeddrmError(
            f"the basis is not finite, or beyond {LARGEST:g}, at observation {fine.argmin() + 1}: scale the data, or "
            f"choose another basis"
        )
    return features


def terms(basis: Basis, columns: list[str], size: int) -> list[str]:
    """The name of each basis function."""
    if isinstance(basis, str):
        return BASES[basis][1](columns)
    return list(getattr(basis, "terms", [f"h{i + 1}" for i in range(size)]))


def as_rows(sample: Any) -> Floats:
    """Numbers as a table with one row per observation."""
    try:
        if isinstance(sample, np.ma.MaskedArray):
            sample = np.ma.filled(sample.astype(np.float64), np.nan)  # np.asarray would drop the mask
        x = np.asarray(sample, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FeddrmError("a sample must be an array of numbers, one row per observation") from error
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise FeddrmError(f"a sample has shape {x.shape}: give one row per observation, or a function as basis")
    if not (fine := np.isfinite(x).all(1)).all():
        raise FeddrmError(f"observation {fine.argmin() + 1} is missing or infinite: remove or correct it")
    return x
