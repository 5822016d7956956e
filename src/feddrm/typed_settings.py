"""Settings from files and command lines, converted to the types of a dataclass's fields."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from feddrm.errors import SettingError

# The words of YAML 1.1 for true, false and null. A text field keeps them as text.
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NULLS = ("", "null", "none", "~")


def typed(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with values of the types that the fields of ``kind`` have: text becomes a number for a number field.

    A value of a wrong type raises an error. Names without a field are returned unchanged.
    """
    hints = get_type_hints(kind)
    result = {}
    for key, value in settings.items():
        try:
            result[key] = _convert(value, hints.get(key, Any))
        except (ValueError, OverflowError) as error:
            raise SettingError(f"{key}={value!r}: give {_describe(hints[key])}") from error
    return result


def _convert(value: Any, hint: Any) -> Any:
    """The value as type ``hint``, or ValueError. Types that cannot be written as text are not checked."""
    options = _options(hint)
    if NoneType in options:
        null_word = isinstance(value, str) and str not in options and value.lower() in NULLS
        if value is None or null_word:
            return None
        return _convert(value, Union[tuple(o for o in options if o is not NoneType)])  # noqa: UP007
    origin = get_origin(hint) or hint
    if hint in (int, float, bool, str):
        return _SCALARS[hint](value)
    if origin in (tuple, Sequence):
        return _list(value, get_args(hint))
    if origin in (dict, Mapping) and not isinstance(value, Mapping):
        raise ValueError
    return value


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
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
    return str(_int(value))  # the name of a column or a folder may be 1


def _list(value: Any, item_hints: tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """Convert every item. Text in brackets is a YAML list, and any other single value is a list of one item."""
    if isinstance(value, str) and value.startswith("["):
        import yaml

        try:
            value = yaml.load(value, Loader=yaml.BaseLoader)  # every item as text
        except yaml.YAMLError as error:
            raise ValueError from error
    values = value if isinstance(value, list | tuple) else [value]
    hints = item_hints if _has_fixed_length(item_hints) else item_hints[:1] * len(values)
    if len(values) != len(hints):
        raise ValueError
    items = [_convert(item, hint) for item, hint in zip(values, hints, strict=True)]
    return tuple(items) if isinstance(values, tuple) else items


_SCALARS = {int: _int, float: _float, bool: _bool, str: _str}


def _has_fixed_length(item_hints: tuple[Any, ...]) -> bool:
    """Whether a tuple's type says how many items it has."""
    return len(item_hints) > 1 and item_hints[1] is not Ellipsis


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _describe(hint: Any) -> str:
    """The type in words, for an error message."""
    nouns = {int: "a whole number", float: "a number", bool: "true or false", str: "text (in YAML, in quotes)"}
    words = []
    for option in _options(hint):
        item_hints = get_args(option)
        if option in nouns:
            words.append(nouns[option])
        elif get_origin(option) in (tuple, Sequence):
            noun = f"{len(item_hints)} values" if _has_fixed_length(item_hints) else "a list"
            words.append(f"{noun}, as in [a, b], each {_describe(item_hints[0])}")
        elif option is not NoneType:
            words.append("settings, as 'key: value'")
    return " or ".join([*words, "null"] if NoneType in _options(hint) else words)
