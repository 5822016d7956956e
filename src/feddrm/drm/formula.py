"""Bases written as formulas on the columns of a table, such as ``~ log(x) + x`` (extra: formula)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feddrm.drm.basis import Floats
from feddrm.errors import FeddrmError


@dataclass(frozen=True, eq=False)
class FormulaBasis:
    """A compiled formula: a function from rows of the named columns to basis functions.

    It is compiled on the pooled samples, so that a transformation that depends on the data (``poly``, ``scale``, the
    levels of a category) is the same for every population and every query.
    """

    formula: str
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    spec: Any  # of formulaic

    @classmethod
    def compile(cls, formula: str, columns: Sequence[str], samples: Sequence[Any]) -> FormulaBasis:
        """Compile on all samples together."""
        if unknown := [name for name in formula_columns(formula) if name not in columns]:
            raise FeddrmError(
                f"the formula '{formula}' names column '{unknown[0]}', but the columns are {', '.join(columns)}: "
                f"correct the formula"
            )
        pooled = np.vstack([_rows(part) for part in samples])
        parsed = _parsed(formula)
        with np.errstate(all="ignore"):  # evaluate_basis refuses what is not finite
            matrix = _computed(formula, lambda: parsed.get_model_matrix(_table(columns, pooled), na_action="ignore"))
        terms = tuple(name for name in map(str, matrix.columns) if name != "Intercept")
        return cls(formula, tuple(columns), terms, matrix.model_spec)

    def __call__(self, sample: Any) -> Floats:
        """One row of basis functions per observation; the constant is not among them."""
        with np.errstate(all="ignore"):
            matrix = self.spec.get_model_matrix(_table(self.columns, _rows(sample)), na_action="ignore")
        return np.asarray(matrix[list(self.terms)], dtype=np.float64)

    def __repr__(self) -> str:
        return self.formula


def formula_columns(formula: str) -> list[str]:
    """The columns that a formula names."""
    return sorted(map(str, _parsed(formula).required_variables))


def _parsed(formula: str) -> Any:
    try:
        from formulaic import Formula
    except ImportError as error:
        raise FeddrmError(
            f"the formula '{formula}' needs the package formulaic: pip install 'feddrm[formula]'"
        ) from error
    return _computed(formula, lambda: Formula(formula))


def _computed(formula: str, compute: Callable[[], Any]) -> Any:
    """The result, or one line that says why there is none. A formula calls functions, which may raise anything."""
    try:
        return compute()
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FeddrmError(f"the formula '{formula}' cannot be computed ({why}): correct it") from error


def _table(columns: Sequence[str], rows: Any) -> Mapping[str, Any]:
    import pandas  # comes with formulaic

    if rows.shape[1] != len(columns):
        raise FeddrmError(f"{rows.shape[1]} columns where {', '.join(columns)} are expected: give the same columns")
    return pandas.DataFrame({name: rows[:, i] for i, name in enumerate(columns)})  # type: ignore[no-any-return]


def _rows(sample: Any) -> Any:
    rows = np.asarray(sample)
    return rows[:, None] if rows.ndim == 1 else rows
