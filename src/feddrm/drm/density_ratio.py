"""The density ratio model: several populations that are exponential tilts of one unspecified reference.

``log dP_l/dP_0 (x) = gamma_l + xi_l' q(x)``: the model assumes nothing about the reference P_0; a few numbers
describe how the other populations differ from it. It is fitted by empirical likelihood, whose dual is multinomial
logistic regression of the population on ``q`` (Anderson, 1979; Qin and Zhang, 1997).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve

from feddrm.drm.basis import AUTO, Basis, Floats, as_rows, check_basis, evaluate_basis, is_formula, terms
from feddrm.drm.basis_choice import BasisChoice, choose_basis
from feddrm.drm.formula import FormulaBasis, formula_columns
from feddrm.drm.logistic import FeatureWhitening, Optimum, information, log_softmax, maximise
from feddrm.errors import FeddrmError, SettingError, quoted
from feddrm.typed_settings import typed_arguments

Samples = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class DensityRatioModel:
    """The assumptions: the basis, and the penalty on large tilts.

    ``basis`` is ``normal`` (x, x^2), ``gamma`` (x, log x), ``lognormal`` (log x, its square), ``beta`` (log x,
    log(1 - x)), ``identity``, ``polynomial(k)``, a formula on the columns (``~ log(x) + x``), or any function from a
    sample to one row per observation (an embedding, for example); ``auto`` chooses a named one by cross-validated
    likelihood. ``ridge`` times half the squared size of the tilts, centred over the
    populations, is subtracted from the log likelihood. Their size is the pooled ``variance`` of the log ratio, which
    does not depend on units, or the sum of squared ``coefficients``, as in scikit-learn with ``C = 1 / ridge`` (for
    two populations ``C = 2 / ridge``, because scikit-learn then penalises only their difference).

    Example:
        >>> young, old = np.arange(20.0), np.arange(5.0, 25.0)
        >>> fit = feddrm.DensityRatioModel("identity").fit({"young": young, "old": old})
        >>> fit
        DensityRatioFit(basis='identity', young (20), old (20))
        >>> bool(fit.posterior(np.array([24.0]))[0, 1] > 0.5)  # a value of 24 rather comes from the old
        True
    """

    basis: Basis = "normal"
    ridge: float = 0.0
    penalty: Literal["variance", "coefficients"] = "variance"

    def __post_init__(self) -> None:
        check_basis(self.basis)
        ridge: Any = self.ridge
        if not (isinstance(ridge, Real) and 0 <= float(ridge) < np.inf):
            raise SettingError(f"ridge={quoted(ridge)}: give 0 or a positive number")
        if self.penalty not in ("variance", "coefficients"):
            raise SettingError(f"penalty '{self.penalty}' is unknown: give variance or coefficients")

    def fit(self, samples: Samples, columns: Sequence[str] | None = None) -> DensityRatioFit:
        """Fit to one sample per population, by name or in order. Ratios are reported against the first.

        Rows X with labels y, as scikit-learn has them, are ``{name: X[y == name] for name in np.unique(y)}``.
        """
        names, parts = named_samples(samples)
        column_names = _columns(parts[0], columns)
        model, choice = self._resolved(names, parts, column_names)
        features = []
        for name, part in zip(names, parts, strict=True):
            try:
                features.append(evaluate_basis(model.basis, part))
            except FeddrmError as error:
                raise FeddrmError(f"population '{name}': {error}") from error
            if features[-1].shape[1] != features[0].shape[1]:
                raise FeddrmError(
                    f"population '{name}' has {features[-1].shape[1]} basis functions, '{names[0]}' has "
                    f"{features[0].shape[1]}: give every population the same columns"
                )
        pooled = np.vstack(features)
        if not pooled.shape[1]:
            raise FeddrmError("the basis has no functions: give at least one")
        if self.ridge == 0:
            _refuse_degenerate(names, features)
        counts = np.array([len(part) for part in features])
        owner = np.repeat(np.arange(len(names)), counts)
        whitening = FeatureWhitening.of(pooled, tolerate_dependence=self.ridge > 0)
        penalty = self._penalty(whitening)
        optimum = maximise(whitening.design(pooled), owner, names, penalty)
        return DensityRatioFit(
            model=model,
            names=names,
            columns=tuple(column_names),
            terms=tuple(terms(model.basis, column_names, pooled.shape[1])),
            samples=tuple(parts),
            features=pooled,
            owner=owner,
            whitening=whitening,
            ridge_matrix=penalty,
            optimum=optimum,
            choice=choice,
        )

    @typed_arguments
    def fit_table(self, table: Any, group: str, columns: Sequence[str] | None = None) -> DensityRatioFit:
        """Fit to a long table, a data frame or a mapping from column names to values, by its ``group`` column.

        ``columns`` are those of the formula, or all others, unless they are given. Populations have the order in
        which they first occur.
        """
        if not hasattr(table, "keys"):
            kind = type(table).__name__
            raise SettingError(f"table of type {kind}: give a data frame, or a dict from column names to values")
        given = list(columns or ())
        if not given:
            used = formula_columns(str(self.basis)) if is_formula(self.basis) else list(table)
            given = [name for name in used if name != group]
        for name in (group, *given):
            if name not in table:
                raise SettingError(f"no column '{name}' (there are: {', '.join(map(str, table))}): correct the name")
        if not given:
            raise SettingError(f"the table has no column but '{group}': give one with the values")
        labels = np.array(_groups(group, table[group]))
        rows = np.column_stack([_numbers(name, table[name]) for name in given])
        names = list(dict.fromkeys(labels.tolist()))
        return self.fit({name: rows[labels == name] for name in names}, [str(name) for name in given])

    def _resolved(
        self, names: tuple[str, ...], parts: list[Any], columns: list[str]
    ) -> tuple[DensityRatioModel, BasisChoice | None]:
        """The model with the basis that ``auto`` chooses, or with the compiled formula."""
        if self.basis == AUTO:
            choice = choose_basis(parts, names=names)
            return replace(self, basis=choice.name), choice
        if isinstance(self.basis, str) and is_formula(self.basis):
            return replace(self, basis=FormulaBasis.compile(self.basis, columns, parts)), None
        return self, None

    def _penalty(self, whitening: FeatureWhitening) -> Floats:
        """The ridge matrix in whitened coordinates; the intercept is not penalised."""
        w = whitening.directions
        out = np.zeros((1 + w.shape[1], 1 + w.shape[1]))
        out[1:, 1:] = np.eye(w.shape[1]) if self.penalty == "variance" else w.T @ w
        return self.ridge * out


@dataclass(frozen=True, eq=False, repr=False)
class DensityRatioFit:
    """A fitted model. Arrays with one entry per population have the order of ``names``."""

    model: DensityRatioModel
    names: tuple[str, ...]
    columns: tuple[str, ...]  # of the samples
    terms: tuple[str, ...]  # of the basis
    samples: tuple[Any, ...]
    features: Floats  # the pooled basis, one row per observation
    owner: NDArray[np.intp]
    whitening: FeatureWhitening
    ridge_matrix: Floats
    optimum: Optimum
    choice: BasisChoice | None = None  # of basis ``auto``

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} ({n})" for name, n in zip(self.names, self.counts, strict=True))
        return f"DensityRatioFit(basis={self.model.basis!r}, {sizes})"

    @cached_property
    def counts(self) -> NDArray[np.intp]:
        return np.bincount(self.owner, minlength=len(self.names))

    @cached_property
    def design(self) -> Floats:
        """The pooled basis in whitened coordinates, a column of ones first."""
        return self.whitening.design(self.features)

    @cached_property
    def gamma_ddagger(self) -> Floats:
        """Intercepts of the dual problem, which include the priors; zero for the first population."""
        return np.asarray((self.optimum.coefficients @ self.whitening.back.T)[:, 0])

    @cached_property
    def gamma_dagger(self) -> Floats:
        """Intercepts of the log density ratios against the first population: ``gamma_ddagger - log(n_l / n_1)``."""
        return np.asarray(self.gamma_ddagger - np.log(self.counts / self.counts[0]))

    @cached_property
    def xi(self) -> Floats:
        """Slopes of the log density ratios against the first population, one row per population."""
        return np.asarray((self.optimum.coefficients @ self.whitening.back.T)[:, 1:])

    @property
    def log_likelihood(self) -> float:
        """The dual: the multinomial log likelihood of the populations, without the ridge."""
        return self.optimum.log_likelihood

    @property
    def profile_log_likelihood(self) -> float:
        """The profile empirical log likelihood at the optimum: the dual less ``sum_l n_l log n_l``."""
        return self.optimum.log_likelihood - float((self.counts * np.log(self.counts)).sum())

    @typed_arguments
    def index(self, population: str | int) -> int:
        """The position of a population in ``names``."""
        if isinstance(population, str):
            if population not in self.names:
                raise SettingError(f"no population '{population}' (there are: {', '.join(self.names)})")
            return self.names.index(population)
        if not -len(self.names) <= population < len(self.names):
            raise SettingError(f"no population {population}: there are {len(self.names)}")
        return population % len(self.names)

    def log_ratio(self, x: Any, against: str | int = 0) -> Floats:
        """``log dP_l/dP_against`` at every row of ``x``, one column per population."""
        logits = self._logits(x) - np.log(self.counts)
        return np.asarray(logits - logits[:, [self.index(against)]])

    def posterior(self, x: Any, priors: ArrayLike | None = None) -> Floats:
        """The probability of each population at every row of ``x``; the default priors are ``n_l / N``."""
        logits = self._logits(x)
        if priors is not None:
            given = np.asarray(priors, dtype=np.float64)
            if given.shape != (len(self.names),) or not ((given > 0) & np.isfinite(given)).all():
                raise SettingError(f"priors {priors!r}: give {len(self.names)} positive numbers, one per population")
            logits = logits + np.log(given / self.counts)
        return np.exp(log_softmax(logits))

    def _logits(self, x: Any) -> Floats:
        features = evaluate_basis(self.model.basis, x)
        if features.shape[1] != self.features.shape[1]:
            raise FeddrmError(
                f"the basis has {features.shape[1]} functions on these observations but had "
                f"{self.features.shape[1]} in the fit: give the same columns"
            )
        return np.asarray(self.whitening.design(features) @ self.optimum.coefficients.T)

    @cached_property
    def weights(self) -> Floats:
        """The estimated distribution of every population: its mass at each pooled observation (columns sum to 1)."""
        return np.asarray(self.optimum.posterior / self.counts)

    @cached_property
    def log_tilts(self) -> Floats:
        """``log dP_l/dP_1`` at every pooled observation."""
        logits = self.design @ self.optimum.coefficients.T
        return np.asarray(logits - np.log(self.counts / self.counts[0]))

    @cached_property
    def coefficient_influence(self) -> Floats:
        """The influence of each observation on the whitened coefficients: inverse information times its score."""
        residual = np.eye(len(self.names))[self.owner] - self.optimum.posterior
        scores = (residual[:, 1:, None] * self.design[:, None, :]).reshape(len(self.design), -1)
        return np.asarray(cho_solve(cho_factor(self.information), scores.T).T)

    @cached_property
    def information(self) -> Floats:
        """Minus the second derivative of the penalised log likelihood in the whitened coefficients."""
        return information(self.design, self.optimum.posterior, self.ridge_matrix)

    @cached_property
    def values(self) -> Floats:
        """The pooled observations as rows of numbers."""
        return np.vstack([as_rows(sample) for sample in self.samples])


@typed_arguments
def named_samples(samples: Samples) -> tuple[tuple[str, ...], list[Any]]:
    """The names of the populations, 1, 2, ... if they have none, and their samples as arrays."""
    if isinstance(samples, Mapping):
        names, parts = tuple(str(name) for name in samples), list(samples.values())
    elif hasattr(samples, "shape"):
        raise SettingError(
            f"samples of type {type(samples).__name__}: give one array per population, as [a, b] or {{name: array}}; "
            "rows X with labels y are {name: X[y == name] for name in np.unique(y)}, a table is for fit_table"
        )
    else:
        parts = list(samples)
        names = tuple(str(i + 1) for i in range(len(parts)))
    if len(parts) < 2:
        raise FeddrmError(f"a density ratio needs two populations, but there is {len(parts)}: give one more sample")
    arrays = [part if hasattr(part, "shape") else np.asarray(part) for part in parts]
    for name, part in zip(names, arrays, strict=True):
        if not part.shape or len(part) < 2:
            size = len(part) if part.shape else 0
            raise FeddrmError(f"population '{name}' has {size} observations: give at least 2, or leave it out")
    return names, arrays


def _refuse_degenerate(names: tuple[str, ...], features: list[Floats]) -> None:
    """A tilt has as many parameters as basis functions and one more, and needs observations that vary."""
    for name, part in zip(names, features, strict=True):
        if len(part) < 1 + part.shape[1]:
            raise FeddrmError(
                f"population '{name}' has {len(part)} observations for the {1 + part.shape[1]} parameters of its tilt: "
                f"give more, a basis with fewer functions, or a ridge above 0"
            )
        if (part == part[0]).all():
            raise FeddrmError(
                f"population '{name}' is constant: all its {len(part)} observations are equal: "
                f"leave it out, or give a ridge above 0"
            )


def _groups(name: str, column: Any) -> list[str]:
    """The population of every row. A gap would be a population of its own."""
    cells = np.asarray(column, dtype=object).tolist()
    for row, cell in enumerate(cells):
        if cell == "" if isinstance(cell, str) else str(cell) in ("None", "nan", "<NA>", "NaT"):
            raise FeddrmError(f"column '{name}', row {row + 1}: the group is missing: complete or remove the row")
    return [str(cell) for cell in cells]


def _numbers(name: str, column: Any) -> Floats:
    values = np.empty(len(column))
    for row, cell in enumerate(np.asarray(column).tolist()):
        try:
            values[row] = float(cell)
        except (TypeError, ValueError):
            values[row] = np.nan
        if not np.isfinite(values[row]):
            raise FeddrmError(
                f"column '{name}', row {row + 1}: {cell!r} is not a finite number: correct it, or remove the row"
            )
    return values


@typed_arguments
def _columns(sample: Any, columns: Sequence[str] | None) -> list[str]:
    width = sample.shape[1] if len(sample.shape) > 1 else 1
    if columns is None:
        return ["x"] if width == 1 else [f"x{i + 1}" for i in range(width)]
    if len(columns) != width:
        raise SettingError(f"{len(columns)} names for {width} columns: give one for each")
    return list(columns)
