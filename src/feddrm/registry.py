"""The registry: finds datasets, models, methods and features by name, and is derived from their classes."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from feddrm.errors import FeddrmError, SettingError, quoted, short_list
from feddrm.plugins import load_configured
from feddrm.typed_settings import typed

LISTED = 30  # names that an error or an object's description lists


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for an error about an unknown name; empty if no known name is similar."""
    folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return f"; did you mean '{folded[close[0]]}'?" if close else ""


def listing(known: Collection[str]) -> str:
    """``"(there are: a, b)"`` for an error about an unknown name; of many names the first."""
    return f"(there are: {short_list(known, LISTED)})"


def require_client(name: object, names: Collection[str]) -> None:
    """Refuse a client that is none of these, and suggest the nearest."""
    if not isinstance(name, str) or name not in names:
        raise FeddrmError(f"unknown client {_with_nearest(name, names)} {listing(names)}")


def check_choice(noun: str, value: object, known: Collection[str]) -> None:
    """Raise an error that suggests the nearest known value if ``value`` is not among them."""
    if not isinstance(value, str) or value not in known:
        raise SettingError(f"unknown {noun} {_with_nearest(value, known)} (known: {', '.join(known)})")


def _with_nearest(name: object, known: Collection[str]) -> str:
    return f"'{name}'{nearest(name, known)}" if isinstance(name, str) else quoted(name)


def first_line(docstring: str | None) -> str:
    """What a listing says of a class."""
    return next(iter((docstring or "").strip().splitlines()), "").rstrip(".")


def built_in(package: str) -> dict[str, str]:
    """Names and first lines of the classes that a package of feddrm defines, read from its source.

    Importing the classes would import torch, which takes seconds.
    """
    found = {}
    for file in (Path(__file__).parent / package).glob("*.py"):
        module = ast.parse(file.read_text(encoding="utf-8"))
        for node in (node for node in module.body if isinstance(node, ast.ClassDef)):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "name" and line.value is not None:
                    found[ast.literal_eval(line.value)] = first_line(ast.get_docstring(node))
    return found


def known_fields(kind: type[Any], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The given settings with the types of ``kind``'s fields; an unknown name is refused, and the nearest one named."""
    names = {f.name for f in dataclasses.fields(kind)}
    for key in given:
        if key not in names:
            raise SettingError(
                f"no {what} setting '{key}'{nearest(str(key), names)} (there are: {', '.join(sorted(names))})"
            )
    return typed(kind, given)


def name_and_settings(part: str, value: Any) -> dict[str, Any]:
    """The name and the settings of one part of a configuration, such as its method; it may also be just a name."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name", ""), str):
        raise SettingError(f"{part}={value!r}: give a name, or a name and settings as 'key: value' lines")
    return {str(key): setting for key, setting in value.items()}


class Named:
    """The base of a family of frozen dataclasses that can be found by name.

    A direct subclass (``Dataset``, ``Model``) is the root of a family. Every class below it that sets
    ``name`` becomes a member when it is defined.
    """

    name: ClassVar[str]
    family: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Named in cls.__bases__:
            cls.family = {}
        elif "name" in cls.__dict__:
            taken = cls.family.setdefault(cls.name, cls)
            # dataclass(slots=True) creates the class again under the same qualified name.
            if (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(f"{cls.name!r} is already the name of {taken.__qualname__}")
            cls.family[cls.name] = cls

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring, for listings."""
        return first_line(cls.__doc__)

    @classmethod
    def find(cls, name: Any) -> type[Self]:
        """The class with this name. Plugins are loaded at the first name that is not built in."""
        new = isinstance(name, str) and name not in cls.family
        if new and (broken := load_configured()) and name not in cls.family:
            raise FeddrmError(f"unknown {cls.noun()} '{name}', and {broken[0]}")
        check_choice(cls.noun(), name, sorted(cls.family))
        return cls.family[name]

    def retyped(self) -> Self:
        """The same object with settings of the types of its fields: a constructor takes anything."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}  # type: ignore[arg-type]
        return dataclasses.replace(self, **typed(type(self), settings))  # type: ignore[type-var]

    @classmethod
    def members(cls) -> dict[str, type[Any]]:
        """All classes of the family by name, those of plugins included."""
        load_configured()
        return cls.family

    @classmethod
    def noun(cls) -> str:
        """The name of the family in messages: ``method``, ``model``."""
        return next(c for c in cls.__mro__ if Named in c.__bases__).__name__.lower()

    @classmethod
    def make(cls, name: str, /, **settings: Any) -> Self:
        """An instance of the class with this name. Unknown settings and values of a wrong type raise errors."""
        member = cls.find(name)
        if abstract := sorted(getattr(member, "__abstractmethods__", ())):
            raise FeddrmError(f"{cls.noun()} '{name}' does not define {', '.join(abstract)}: write it in its class")
        fields = {f.name: f for f in dataclasses.fields(member)}  # type: ignore[arg-type]
        for key in settings:
            if key not in fields:
                known = f"(it has: {', '.join(sorted(fields))})" if fields else "(it has none: leave it out)"
                raise SettingError(f"'{name}' has no setting '{key}'{nearest(key, fields)} {known}")
        for key, field in fields.items():
            if key not in settings and field.default is field.default_factory is dataclasses.MISSING:
                raise SettingError(f"'{name}' needs the setting '{key}': give it a value, or its class a default")
        return member(**typed(member, settings))
