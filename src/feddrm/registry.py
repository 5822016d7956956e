"""Finding datasets, models and methods by name: one registry, derived from the classes."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from feddrm.errors import SettingError
from feddrm.typed_settings import typed


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` or nothing: the tail of an error about an unknown name."""
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return f"; did you mean '{folded[close[0]]}'?" if close else ""


class Named:
    """A family of frozen dataclasses that can be found by name.

    The direct subclass is the root of a family (``Dataset``, ``Model``); every class below it that
    sets ``name`` joins. Nothing is listed twice: what exists is what has been defined.
    """

    name: ClassVar[str]
    family: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Named in cls.__bases__:
            cls.family = {}
        elif "name" in cls.__dict__:
            taken = cls.family.setdefault(cls.name, cls)
            # dataclass(slots=True) re-creates the class under the same qualified name.
            if taken.__qualname__ != cls.__qualname__:
                raise TypeError(f"{cls.name!r} is already the name of {taken.__qualname__}")
            cls.family[cls.name] = cls

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring, as shown in listings."""
        return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")

    @classmethod
    def find(cls, name: str) -> type[Self]:
        """The member called ``name``; an unknown one is answered with the nearest."""
        if name not in cls.family:
            kind = next(c for c in cls.__mro__ if Named in c.__bases__).__name__.lower()
            raise SettingError(
                f"unknown {kind} '{name}'{nearest(name, cls.family)} (known: {', '.join(sorted(cls.family))})"
            )
        return cls.family[name]

    @classmethod
    def make(cls, name: str, /, **settings: Any) -> Self:
        """The member called ``name`` with these settings; what it lacks, or could not be, is refused."""
        member = cls.find(name)
        fields = {f.name for f in dataclasses.fields(member)}  # type: ignore[arg-type]
        for key in settings:
            if key not in fields:
                raise SettingError(
                    f"'{name}' has no setting '{key}'{nearest(key, fields)} (it has: {', '.join(sorted(fields))})"
                )
        return member(**typed(member, settings))
