"""Values from files and command lines, as the fields of a dataclass want them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from feddrm.errors import SettingError

# What YAML 1.1 takes for them; a field that wants text keeps the words.
TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NOTHING = ("", "null", "none", "~")


def typed(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, text turned into numbers where the fields of ``kind`` are numbers.

    A value that is not what its field wants is refused; names that are no fields are left to the caller.
    """
    hints = get_type_hints(kind)
    found = {}
    for key, value in given.items():
        try:
            found[key] = _fit(value, hints.get(key, Any))
        except (ValueError, OverflowError) as error:
            raise SettingError(f"{key}={value!r}: give {_words(hints[key])}") from error
    return found


def _fit(value: Any, wanted: Any) -> Any:
    """The value as ``wanted``, or ValueError; types that nobody can write down are not looked at."""
    options = _options(wanted)
    if NoneType in options:
        text = isinstance(value, str) and str not in options and value.lower() in NOTHING
        return None if value is None or text else _fit(value, Union[tuple(o for o in options if o is not NoneType)])  # noqa: UP007
    origin = get_origin(wanted) or wanted
    if wanted in (int, float, bool, str):
        return _SCALARS[wanted](value)
    if origin in (tuple, Sequence):
        return _list(value, get_args(wanted))
    if origin in (dict, Mapping) and not isinstance(value, Mapping):
        raise ValueError
    return value


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in TRUTH:
        return TRUTH[value.lower()]
    raise ValueError


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | Real) or math.isnan(float(value)):
        raise ValueError
    return float(value)


def _str(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return str(_int(value))  # a column or a folder may be called 1


def _list(value: Any, items: tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """Every item checked; one alone is a list of one, and text in brackets is read as YAML writes lists."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = yaml.load(value, Loader=yaml.BaseLoader)  # every item as text
        except yaml.YAMLError as error:
            raise ValueError from error
    values = value if isinstance(value, list | tuple) else [value]
    wanted = items if _counted(items) else items[:1] * len(values)
    if len(values) != len(wanted):
        raise ValueError
    found = [_fit(item, kind) for item, kind in zip(values, wanted, strict=True)]
    return tuple(found) if isinstance(values, tuple) else found


_SCALARS = {int: _int, float: _float, bool: _bool, str: _str}


def _counted(items: tuple[Any, ...]) -> bool:
    """Whether a tuple's type says how many items it has."""
    return len(items) > 1 and items[1] is not Ellipsis


def _options(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)


def _words(wanted: Any) -> str:
    """What to give, for people."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text (in YAML, in quotes)"}
    said = []
    for option in _options(wanted):
        items = get_args(option)
        if option in names:
            said.append(names[option])
        elif get_origin(option) in (tuple, Sequence):
            many = f"{len(items)} values" if _counted(items) else "a list"
            said.append(f"{many}, as in [a, b], each {_words(items[0])}")
        elif option is not NoneType:
            said.append("settings, as 'key: value'")
    return " or ".join([*said, "null"] if NoneType in _options(wanted) else said)
