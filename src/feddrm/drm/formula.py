"""Bases written as formulas on the columns of a table, such as ``~ log(x) + x`` (extra: formula)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        try:
            from formulaic import Formula
            from formulaic.errors import FormulaicError
        except ImportError as error:
            raise FeddrmError(
                f"the formula '{formula}' needs the package formulaic: pip install 'feddrm[formula]'"
            ) from error
        try:
            parsed = Formula(formula)
            if unknown := sorted(set(map(str, parsed.required_variables)) - set(columns)):
                raise FeddrmError(
                    f"the formula '{formula}' names column '{unknown[0]}', but the columns are {', '.join(columns)}: "
                    f"correct the formula"
                )
            with np.errstate(all="ignore"):  # evaluate_basis refuses what is not finite
                matrix = parsed.get_model_matrix(_table(columns, np.vstack([_rows(part) for part in samples])))
        except (FormulaicError, SyntaxError, TypeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise FeddrmError(f"the formula '{formula}' cannot be computed ({why}): correct it") from error
        terms = tuple(name for name in map(str, matrix.columns) if name != "Intercept")
        return cls(formula, tuple(columns), terms, matrix.model_spec)

    def __call__(self, sample: Any) -> Floats:
        """One row of basis functions per observation; the constant is not among them."""
        with np.errstate(all="ignore"):
            matrix = self.spec.get_model_matrix(_table(self.columns, _rows(sample)))
        return np.asarray(matrix[list(self.terms)], dtype=np.float64)

    def __repr__(self) -> str:
        return self.formula


def _table(columns: Sequence[str], rows: Any) -> Mapping[str, Any]:
    import pandas  # comes with formulaic

    if rows.shape[1] != len(columns):
        raise FeddrmError(f"{rows.shape[1]} columns where {', '.join(columns)} are expected: give the same columns")
    return pandas.DataFrame({name: rows[:, i] for i, name in enumerate(columns)})  # type: ignore[no-any-return]


def _rows(sample: Any) -> Any:
    rows = np.asarray(sample)
    return rows[:, None] if rows.ndim == 1 else rows
