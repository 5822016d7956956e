"""Typed settings: values in text become what a dataclass's fields are, and wrong values are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from feddrm.errors import SettingError
from feddrm.typed_settings import typed


@dataclass(frozen=True)
class Kind:
    whole: int = 1
    real: float = 1.0
    flag: bool = False
    text: str = ""
    maybe: int | None = None
    name: str | None = None
    words: tuple[str, ...] = ()
    widths: Sequence[int] = ()
    pair: tuple[int, int] | None = None
    free: Mapping[str, Any] | None = None
    other: Path | None = None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("whole", "-3", -3),
        ("whole", np.int64(3), 3),
        ("real", 2, 2.0),
        ("real", "1e-2", 0.01),
        ("real", np.float32(0.5), 0.5),
        ("real", "inf", float("inf")),
        ("flag", "yes", True),
        ("flag", "False", False),
        ("flag", True, True),
        ("text", "yes", "yes"),
        ("text", "[a]", "[a]"),
        ("text", "null", "null"),
        ("text", 1, "1"),
        ("text", Path("a/b"), "a/b"),
        ("maybe", "null", None),
        ("maybe", None, None),
        ("maybe", "4", 4),
        ("name", "null", "null"),
        ("name", None, None),
        ("words", "[no, 1, 'a, b']", ["no", "1", "a, b"]),
        ("words", "alone", ["alone"]),
        ("words", ("a", 1), ("a", "1")),
        ("widths", "[16, 8]", [16, 8]),
        ("widths", 16, [16]),
        ("widths", (), ()),
        ("pair", [1, "2"], [1, 2]),
        ("free", {"a": 1}, {"a": 1}),
        ("other", Path("x"), Path("x")),
        ("stranger", 5, 5),
    ],
)
def test_values_become_the_type_of_their_field(key: str, value: object, expected: object) -> None:
    (result,) = typed(Kind, {key: value}).values()
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "give"),
    [
        ("whole", "x", "a whole number"),
        ("whole", "", "a whole number"),
        ("whole", 2.5, "a whole number"),
        ("whole", True, "a whole number"),
        ("whole", None, "a whole number"),
        ("real", "x", "a number"),
        ("real", "nan", "a number"),
        ("real", False, "a number"),
        ("real", 10**400, "a number"),
        ("real", [1.0], "a number"),
        ("flag", 1, "true or false"),
        ("flag", "maybe", "true or false"),
        ("text", True, "text (in YAML, in quotes)"),
        ("text", 1.5, "text (in YAML, in quotes)"),
        ("text", ["a"], "text (in YAML, in quotes)"),
        ("maybe", "x", "a whole number or null"),
        ("words", [True], "a list, as in [a, b], each text (in YAML, in quotes)"),
        ("widths", "[16", "a list, as in [a, b], each a whole number"),
        ("widths", "[16, x]", "a list, as in [a, b], each a whole number"),
        ("pair", [1], "2 values, as in [a, b], each a whole number or null"),
        ("pair", 1, "2 values, as in [a, b], each a whole number or null"),
        ("free", "a", "settings, as 'key: value' or null"),
    ],
)
def test_values_of_a_wrong_type_are_refused(key: str, value: object, give: str) -> None:
    with pytest.raises(SettingError) as refusal:
        typed(Kind, {key: value})
    assert str(refusal.value) == f"{key}={value!r}: give {give}"


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(), st.lists(st.integers())))
def test_a_value_and_its_yaml_text_give_the_same(value: object) -> None:
    """For every field that is not text."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    for key in ("whole", "real", "flag", "widths"):
        try:
            expected = typed(Kind, {key: value})
        except SettingError:
            continue
        if not isinstance(value, str):
            assert typed(Kind, {key: text.replace(".inf", "inf")}) == expected
