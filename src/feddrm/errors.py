"""Errors that a user can correct. The command line prints them without a stack trace."""

from __future__ import annotations

import copyreg
import math
import reprlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

INTERRUPTED = 130  # the exit code by which shells report Ctrl-C
MOST_PROBLEMS = 20  # cells that one error lists


class FeddrmError(Exception):
    """An error that the user can correct (exit code 1).

    Its text is one line, which names the wrong value and the remedy.

    Example:
        >>> try:
        ...     feddrm.load("digits", alpha=-1)
        ... except feddrm.FeddrmError as error:
        ...     print(error)
        alpha=-1.0: the Dirichlet parameter must be positive (the paper: 0.3)
    """

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without ``__init__``, whose arguments are no text in some classes: worker processes send errors."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class SettingError(FeddrmError):
    """An impossible name or value, found before any file is read (exit code 2)."""

    exit_code = 2


class DivergedError(FeddrmError):
    """A training whose loss, parameters or answers are not finite any more."""


class UnmaskedError(FeddrmError):
    """A method whose result depends on the places of a batch that hold no sample."""


class InterruptedRunError(FeddrmError):
    """Ctrl-C during long work; ``then`` says how it goes on (exit code 130)."""

    exit_code = INTERRUPTED

    def __init__(self, then: str) -> None:
        super().__init__(f"interrupted: {then}")


@dataclass(frozen=True)
class FieldProblem:
    """What is wrong with one cell of one row."""

    row: int
    column: str
    value: Any
    problem: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it; a long text is shortened."""
        value = self.value if self.value is None or isinstance(self.value, int | float) else str(self.value)[:64]
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        return {"row": self.row, "column": self.column, "value": value, "problem": self.problem}

    def as_flag(self) -> dict[str, Any]:
        """As JSON holds it beside the row that it belongs to."""
        return {key: value for key, value in self.as_dict().items() if key != "row"}

    def __str__(self) -> str:
        return f"column '{self.column}' is {quoted(self.value)}: {self.problem}"


class TableError(FeddrmError):
    """Cells that cannot be encoded. The text names the first; ``problems`` has one entry per cell."""

    def __init__(self, problems: Sequence[FieldProblem], place: Callable[[int], str] = "row {}".format) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{place(problems[0].row)}: {problems[0]}{more}")
        self.problems = tuple(problems[:MOST_PROBLEMS])


def quoted(value: object) -> str:
    """A value quoted, on one line and shortened, for an error message."""
    scalar = hasattr(value, "item") and getattr(value, "shape", ()) == ()
    plain = value.item() if scalar else value  # type: ignore[attr-defined]
    return " ".join(reprlib.repr(plain).split())


def short_list(words: Collection[str], most: int = 12) -> str:
    """The words, separated by commas; of many the first, and how many there are."""
    more = f", ...; {len(words):,} in all" if len(words) > most else ""
    return f"{', '.join(islice(words, most))}{more}"
