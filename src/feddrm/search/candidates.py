"""The search space: every combination of the values to try."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from feddrm.engine import Plan
from feddrm.errors import SettingError
from feddrm.methods import Method
from feddrm.registry import nearest
from feddrm.typed_settings import typed

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the usual learning rate: what is tried unless rates are given
FIXED = ("rounds", "seed", "participation", "dropout")  # they belong to the question, not to the answer


@dataclass(frozen=True)
class Candidate:
    """One combination of values. Keys are fields of the plan, or ``method.KEY``."""

    values: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """Short and fit for a folder, such as ``lr=0.1,lam=0.8``. Other values give another name."""
        return ",".join(f"{key.removeprefix('method.')}={_short(value)}" for key, value in self.values)

    @property
    def plan(self) -> dict[str, Any]:
        """The values that belong to the plan."""
        return {key: value for key, value in self.values if not key.startswith("method.")}

    def method(self, base: Method) -> Method:
        """The method with this candidate's own values."""
        own = {key.removeprefix("method."): value for key, value in self.values if key.startswith("method.")}
        given = {f.name: getattr(base, f.name) for f in fields(base)}
        return Method.make(base.name, **given | own) if own else base


def all_candidates(axes: Mapping[str, Sequence[Any]], method: Method, usual: Plan) -> list[Candidate]:
    """Every combination of the axes' values; without any axis, multiples of the usual rate are tried."""
    usual_rates = {"lr": tuple(float(f"{usual.lr * factor:.3g}") for factor in FACTORS)}
    axes = {key: _several(values) for key, values in axes.items()} or usual_rates
    for key, values in axes.items():
        if not values:
            raise SettingError(f"{key}: there is nothing to try: give values, as in {key}=0.01,0.1")
    columns = {key: [_checked(key, value, method) for value in values] for key, values in axes.items()}
    combinations = itertools.product(*columns.values())
    return list(dict.fromkeys(Candidate(tuple(zip(columns, values, strict=True))) for values in combinations))


def _several(values: Any) -> tuple[Any, ...]:
    """The values of an axis; none if they are no list, such as a single number."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else ()


def _short(value: Any) -> str:
    """Six digits of a number, if they are all that it has."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _checked(key: str, value: Any, method: Method) -> Any:
    """The value with the type of the setting; a key that plan and method do not have is refused."""
    if key.startswith("method."):
        name = key.removeprefix("method.")
        return getattr(Method.make(method.name, **{name: value}), name)
    known = [f.name for f in fields(Plan) if f.name not in FIXED]
    if key not in known:
        raise SettingError(
            f"no setting '{key}' can be searched{nearest(key, known)} (there are: {', '.join(known)}, and method.KEY)"
        )
    return typed(Plan, {key: value})[key]
