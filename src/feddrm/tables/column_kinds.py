"""The kinds of columns of a table: how a raw cell is read, encoded and checked. A new kind is one class."""

from __future__ import annotations

import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feddrm.errors import SettingError, quoted
from feddrm.io.text import parse_float

MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})  # compared in lower case
UNKNOWN = "unknown"  # what a person writes for a missing value
GAPS = frozenset(form for text in (*MISSING, UNKNOWN) for form in (text, text.upper(), text.title(), "NaN"))
MAX_FLOAT32 = float(np.finfo(np.float32).max)
FAR = 8.0  # standard deviations from the pooled mean beyond which a value without a declared range is flagged
ROUNDING = 1e-5  # of a value: inputs are float32
FLOAT32 = 2e-7  # of its distance from the centre: what a number may lose as a network input
DECIMAL_POINT = "write numbers with a decimal point and no other separator, as 1234.5"
MARKED = "it is marked as missing, but has a value"

Values = NDArray[np.float64]
Finding = tuple[int, Any, str]  # row, value, what is wrong


class Usual(NamedTuple):
    """Mean and standard deviation of a network input, pooled over all clients' training samples."""

    mean: float
    deviation: float

    def distance(self, x: Values) -> Values:
        """Standard deviations from the mean; zero for 0 and 1 in a column of zeros and ones, however rare one is."""
        binary = math.isclose(self.deviation**2, self.mean * (1 - self.mean), rel_tol=1e-3)
        far: Values = np.abs(x - self.mean) / self.deviation
        return np.where((x == 0) | (x == 1), 0.0, far) if binary else far

    def flags(self, x: Values) -> Iterator[tuple[int, str]]:
        """Rows that are far from the mean, and what to say of them."""
        for row in np.flatnonzero(self.distance(x) > FAR).tolist():
            yield row, f"more than {FAR:g} standard deviations from the mean of the training data"


@dataclass(frozen=True)
class RawColumn(ABC):
    """One raw column. ``missing`` says whether its cells may be empty; it then has an indicator among the inputs."""

    kind: ClassVar[str]

    name: str
    title: str = ""
    missing: bool = False

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """The names of its network inputs, without the indicator."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What a cell may hold, in words."""

    @abstractmethod
    def check(self) -> None:
        """Raise an error for a description that cannot be."""

    @abstractmethod
    def value(self, cell: Any) -> float | None:
        """The number that stands for a cell, NaN for a missing one; None for a cell that cannot be."""

    @abstractmethod
    def encode(self, values: Values) -> Values:
        """Network inputs [n, outputs]. A missing value becomes zeros."""

    @abstractmethod
    def decode(self, inputs: Values) -> list[Any]:
        """What network inputs [n, outputs] stand for, as a person writes it; None for what is no encoding."""

    @abstractmethod
    def problems(
        self, inputs: Values, empty: NDArray[np.bool_], filled: bool, usual: Usual | None
    ) -> Iterator[Finding]:
        """Rows of network inputs that no raw row can have.

        ``empty`` are the rows that are marked as missing. ``filled`` says that they may have a value all the same.
        """

    @abstractmethod
    def examples(self) -> Sequence[Any]:
        """Plausible cells, made up from the description."""

    def read(self, cell: Any) -> float:
        """The number that stands for a cell; an error that says what is allowed."""
        value = self.value(cell)
        if value is None:
            raise ValueError(f"give {self.allowed}{f', or {UNKNOWN}' if self.missing else ''}")
        if math.isnan(value) and not self.missing:
            raise ValueError(f"a value is needed: give {self.allowed}")
        return value

    def read_all(self, cells: Sequence[Any]) -> Values | None:
        """The numbers of a whole column, quickly; None if a cell must be read by itself, a wrong one for instance."""
        kinds = set(map(type, cells))
        if kinds != {str} and not kinds <= {int, float}:
            return None
        texts = cells if kinds == {str} else list(map(str, cells))  # a number is read as its text is
        try:
            known = {text: self.read(text) for text in set(texts)}
        except ValueError:
            return None
        return np.array([known[text] for text in texts], dtype=np.float64)

    def as_dict(self) -> dict[str, Any]:
        """Plain values without defaults, as YAML and JSON hold them."""
        defaults = {name: f.default for name, f in self.__dataclass_fields__.items()}
        values = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        whole = {key: int(value) for key, value in values.items() if isinstance(value, float) and value.is_integer()}
        return {"name": self.name, "kind": self.kind, **values, **whole}


@dataclass(frozen=True)
class NumberColumn(RawColumn):
    """A measurement. ``centre`` and ``scale`` are constants of all clients, never statistics of one client.

    Values outside ``minimum`` and ``maximum`` cannot be. ``zero_is_missing``: a zero means "not measured".
    """

    kind: ClassVar[str] = "number"

    unit: str = ""
    centre: float = 0.0
    scale: float = 1.0
    minimum: float | None = None
    maximum: float | None = None
    zero_is_missing: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def range(self) -> str:
        low, high = (None if limit is None else f"{limit:g}" for limit in (self.minimum, self.maximum))
        text = f"{low}..{high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""
        return f"{text} {self.unit}".strip() if text else ""

    @property
    def allowed(self) -> str:
        detail = self.range or self.unit
        return f"a number ({detail})" if detail else "a number"

    def check(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.centre)):
            raise SettingError(f"centre={self.centre:g}, scale={self.scale:g}: give finite numbers, scale above zero")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise SettingError(f"minimum={self.minimum:g} is above maximum={self.maximum:g}: exchange them")
        if self.zero_is_missing and not self.missing:
            raise SettingError("zero_is_missing needs 'missing: true': add it")

    def value(self, cell: Any) -> float | None:
        if is_missing(cell):
            return math.nan
        number = None if isinstance(cell, bool) else parse_float(str(cell))
        if number is None or not abs(number) <= MAX_FLOAT32:
            return None
        return math.nan if self.zero_is_missing and number == 0 else number

    def read_all(self, cells: Sequence[Any]) -> Values | None:
        values = all_numbers(cells)
        if values is None:
            return super().read_all(cells)
        if self.zero_is_missing:
            values[values == 0] = np.nan
        return values if self.missing or not np.isnan(values).any() else None

    def encode(self, values: Values) -> Values:
        return np.nan_to_num((values - self.centre) / self.scale, nan=0.0)[:, None]

    def raw(self, inputs: Values) -> Values:
        """The numbers of a table that network inputs [n] stand for, without decimals that float32 has made up."""
        distance = inputs * self.scale
        numbers = distance + self.centre
        lost = FLOAT32 * np.abs(distance)
        decimals = np.floor(-np.log10(lost, where=lost > 1e-200, out=np.full_like(lost, -np.inf)))
        for some in np.unique(decimals[np.isfinite(decimals)]).astype(int).tolist():
            rows = decimals == some
            numbers[rows] = np.round(numbers[rows], some) + 0.0  # no negative zero
        return numbers

    def decode(self, inputs: Values) -> list[Any]:
        return [plain_number(number) for number in self.raw(inputs[:, 0]).tolist()]

    def problems(
        self, inputs: Values, empty: NDArray[np.bool_], filled: bool, usual: Usual | None
    ) -> Iterator[Finding]:
        x = inputs[:, 0]
        raw = self.raw(x)
        if not filled:
            for row in np.flatnonzero(empty & (x != 0)).tolist():
                yield row, plain_number(raw[row]), MARKED
        if not self.range:
            yield from ((row, plain_number(raw[row]), text) for row, text in (usual.flags(x) if usual else ()))
            return
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        slack = ROUNDING * np.maximum(np.abs(raw), max(self.scale, abs(self.centre)))
        outside = (raw < low - slack) | (raw > high + slack)
        problem = f"outside {self.range}" if low > -math.inf and high < math.inf else f"it must be {self.range}"
        for row in np.flatnonzero(outside & ~(empty & (x == 0))).tolist():
            yield row, plain_number(raw[row]), problem

    def examples(self) -> Sequence[Any]:
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        values = (self.centre, self.centre + self.scale, self.centre - self.scale / 2)
        return [plain_number(min(max(value, low), high)) for value in values]


@dataclass(frozen=True)
class CategoryColumn(RawColumn):
    """One of several codes, each with a label. Yes and no are two categories.

    A cell holds the code or the label. Two categories are one network input, -1 or 1; more are one input each.
    """

    kind: ClassVar[str] = "category"

    categories: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        categories = {_text(code): _text(label) for code, label in self.categories.items()}
        object.__setattr__(self, "categories", categories)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(self.categories)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{code}" for code in self.codes) if len(self.codes) > 2 else (self.name,)

    @property
    def allowed(self) -> str:
        words = [code if code == label else f"{code} ({label})" for code, label in self.categories.items()]
        return f"one of {', '.join(words)}"

    @cached_property
    def _places(self) -> dict[str | float, int]:
        """The number of a category by its code, its label and, where it is one, the code's number."""
        places: dict[str | float, int] = {}
        for place, (code, label) in enumerate(self.categories.items()):
            for key in {code.casefold(), label.casefold()}:
                if (other := self.codes[places.setdefault(key, place)]) == code:
                    continue
                if other.casefold() == code.casefold():
                    pair = f"{quoted(other)} and {quoted(code)}"
                    raise SettingError(f"categories: {pair} differ only in case: spell them alike in all rows")
                raise SettingError(f"categories: {key!r} names two of them: rename one")
        for place, code in enumerate(self.codes):
            if (number := parse_float(code)) is not None and places.setdefault(number, place) != place:
                raise SettingError(f"categories: {number:g} is two codes: rename one")
        return places

    def check(self) -> None:
        if len(self.codes) < 2 or not all(self.codes):
            raise SettingError(f"categories={dict(self.categories)}: give at least two, as {{0: no, 1: yes}}")
        _ = self._places

    def value(self, cell: Any) -> float | None:
        text = "" if cell is None else _text(cell).casefold()
        number = float(cell) if isinstance(cell, bool) else parse_float(text)
        for key in (text, number):
            if key is not None and key in self._places:
                return float(self._places[key])
        return math.nan if is_missing(cell) else None

    def encode(self, values: Values) -> Values:
        if len(self.codes) > 2:
            return np.stack([values == place for place in range(len(self.codes))], axis=1).astype(np.float64)
        return np.nan_to_num((values - 0.5) / 0.5, nan=0.0)[:, None]

    def decode(self, inputs: Values) -> list[Any]:
        labels, chosen = list(self.categories.values()), inputs == 1
        if len(labels) == 2:
            chosen = np.concatenate([inputs == -1, chosen], axis=1)
        one = chosen.sum(1) == 1
        return [labels[place] if sure else None for place, sure in zip(chosen.argmax(1), one, strict=True)]

    def problems(
        self,
        inputs: Values,
        empty: NDArray[np.bool_],
        filled: bool,
        usual: Usual | None,  # noqa: ARG002
    ) -> Iterator[Finding]:
        several = len(self.codes) > 2
        chosen = inputs == 1 if several else np.concatenate([inputs == -1, inputs == 1], axis=1)
        odd = np.any(~np.isin(inputs, (0, 1) if several else (-1, 0, 1)), axis=1)
        count = chosen.sum(1)
        wrong = odd | (count > 1) | ((count == 0) & ~empty) | ((count == 1) & empty & (not filled))
        labels = list(self.categories.values())
        for row in np.flatnonzero(wrong).tolist():
            names = [labels[place] for place in np.flatnonzero(chosen[row]).tolist()]
            if odd[row]:
                shown = dict(zip(self.outputs, map(plain_number, inputs[row]), strict=True))
                yield row, ", ".join(f"{k}={v}" for k, v in shown.items() if v), "no encoding of a category"
            elif count[row] > 1:
                yield row, " and ".join(names), "several categories at once"
            elif count[row] == 0:
                yield row, None, "no category, and not marked as missing"
            else:
                yield row, names[0], MARKED

    def examples(self) -> Sequence[Any]:
        return [self.codes[0], self.codes[-1], self.codes[len(self.codes) // 2]]


KINDS: dict[str, type[RawColumn]] = {kind.kind: kind for kind in (NumberColumn, CategoryColumn)}


def is_missing(cell: Any) -> bool:
    """Whether a raw cell holds no value: None, NaN, an empty text, '?', 'unknown' and the like."""
    if cell is None or (isinstance(cell, float | np.floating) and math.isnan(cell)):
        return True
    return isinstance(cell, str) and ((text := cell.strip().lower()) in MISSING or text == UNKNOWN)


def all_numbers(cells: Sequence[Any]) -> Values | None:
    """The numbers of a whole column, NaN where one is missing; None if a cell must be looked at by itself.

    Read cell by cell, a large table takes twice as long to load.
    """
    kinds = set(map(type, cells))
    texts = kinds == {str}
    if not (texts or kinds <= {int, float}) or (texts and "_" in "".join(cells)):  # see parse_float
        return None
    gaps = GAPS.intersection(cells)
    try:
        values = np.array([math.nan if c in gaps else float(c) for c in cells] if gaps else list(map(float, cells)))
    except (ValueError, OverflowError):
        return None
    missing = np.isnan(values)
    if texts and missing.any() and missing.sum() > sum(map(gaps.__contains__, cells)):  # "-nan" is no gap
        return None
    return values if np.all(missing | (np.abs(values) <= MAX_FLOAT32)) else None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return unicodedata.normalize("NFC", str(value).strip())


def plain_number(number: float) -> float | int:
    """A number with the digits of float32, without '.0'."""
    rounded = float(f"{number:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
