"""Settings from files and command lines, converted to the types of a dataclass's fields; arguments from Python."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Number, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from feddrm.errors import SettingError, quoted

P = ParamSpec("P")
R = TypeVar("R")

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
            raise SettingError(f"{key}={quoted(value)}: give {_describe(hints[key])}") from error
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
    if getattr(value, "shape", ()):  # an array
        value = value.tolist()
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


def typed_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments of other types than the signature of a public function has, in one line.

    Numbers of numpy become plain ones, and a device of torch its name: neither YAML nor JSON can hold them.
    """
    signature = inspect.signature(function)
    types = functools.cache(lambda: get_type_hints(function))  # at the first call: it may name what is defined below

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        plain_args: Any = tuple(map(_plain, args))
        plain: Any = {key: _plain(value) for key, value in kwargs.items()}
        hints = types()
        for key, value in (*zip(signature.parameters, plain_args, strict=False), *plain.items()):
            if not _fits(value, hints.get(key, Any)):
                raise SettingError(_wrong_argument(key, value, hints[key]))
        return function(*plain_args, **plain)

    return checked


def _plain(value: Any) -> Any:
    if isinstance(value, Number) and hasattr(value, "item"):
        return value.item()
    kind = type(value)
    return str(value) if (kind.__module__, kind.__name__) == ("torch", "device") else value


_ACCEPTED: dict[Any, Any] = {int: Integral, float: Real, bool: Integral, Path: os.PathLike}  # numpy's numbers, too


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, type):  # first: queries wait for this
        return isinstance(value, _ACCEPTED.get(hint, hint))
    options = _options(hint)
    if len(options) > 1:
        return any(_fits(value, option) for option in options)
    kind, items = get_origin(hint), get_args(hint)
    if kind is Sequence:  # arrays and columns of tables are sequences, too; text is one value
        is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return is_list and getattr(value, "shape", (0,)) != () and all(_fits(item, items[0]) for item in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(_fits(item, items[1]) for item in value.values())
    return not isinstance(kind, type) or isinstance(value, kind)


def _wrong_argument(key: str, value: Any, hint: Any) -> str:
    options = _options(hint)
    if isinstance(value, type) and any(option in value.__mro__ for option in options):
        return f"{key}={value.__name__} is a class: give an object, as {value.__name__}()"
    plain = value is None or isinstance(value, str | bytes | Number | os.PathLike | list | tuple | dict)
    shown = f"{key}={quoted(value)}" if plain else f"{key} of type {type(value).__name__}"
    return f"{shown}: give {_describe_argument(options)}"


def _describe_argument(options: tuple[Any, ...]) -> str:
    """The types in words, as a user of Python knows them."""
    nouns: dict[Any, str] = {
        str: "text" if len(options) == 1 else "a name",
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        Path: "a path",
        Callable: "a function",
        Sequence: "a list, each item",
        Mapping: "a dict, each value",
    }
    words = []
    for option in sorted(options, key=lambda option: get_origin(option) is not None):  # lists last: they say more
        kind = get_origin(option) or option
        if kind in (Sequence, Mapping):
            item = get_args(option)[-1]
            noun = nouns[kind]
            words.append(noun.partition(",")[0] if item is Any else f"{noun} {_describe_argument(_options(item))}")
        elif kind in nouns:
            words.append(nouns[kind])
        elif isinstance(kind, type) and kind is not NoneType:
            makers = [name for name in vars(kind) if name.startswith("from_")]
            words.append(f"a {kind.__name__}" + (f" (by {kind.__name__}.{', '.join(makers)})" if makers else ""))
    if Path in options:
        words.remove(nouns[str])  # the text is a path
    return " or ".join(words)
