"""Typed settings: values in text become what a dataclass's fields are, and wrong values are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from feddrm.errors import SettingError, quoted
from feddrm.typed_settings import typed, typed_arguments
from letters import LETTERS


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
        ("widths", np.array([16, 8]), [16, 8]),
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
        ("real", np.zeros((50, 50)), "a number"),
    ],
)
def test_values_of_a_wrong_type_are_refused(key: str, value: object, give: str) -> None:
    with pytest.raises(SettingError) as refusal:
        typed(Kind, {key: value})
    assert str(refusal.value) == f"{key}={quoted(value)}: give {give}"


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(LETTERS), st.lists(st.integers())))
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


class Made:
    @classmethod
    def from_rows(cls) -> Made:
        return cls()


@typed_arguments
def public(
    data: str | Made = "a",
    out: str | Path = "b",
    seeds: Sequence[int] = (),
    share: float = 0.5,
    listen: Callable[[int], None] | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    **settings: Any,
) -> str:
    return str(data)


@pytest.mark.parametrize(
    "given",
    [
        {"data": Made()},
        {"out": Path("x")},
        {"seeds": np.arange(3)},
        {"seeds": {1, 2}},
        {"seeds": {1: "a"}.keys()},
        {"share": np.float32(0.5)},
        {"listen": print},
        {"axes": {"lr": np.ones(2)}},
        {"rounds": "anything"},
    ],
)
def test_arguments_of_the_types_of_the_signature_are_taken(given: dict[str, Any]) -> None:
    assert public(**given) == str(given.get("data", "a"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"data": 3}, "data=3: give a name or a Made (by Made.from_rows)"),
        ({"data": None}, "data=None: give a name or a Made (by Made.from_rows)"),
        ({"data": Path("a")}, f"data={Path('a')!r}: give a name or a Made (by Made.from_rows)"),
        ({"data": [np.zeros(3)]}, "data=[array([0., 0., 0.])]: give a name or a Made (by Made.from_rows)"),
        ({"data": Made}, "data=Made is a class: give an object, as Made()"),
        ({"out": np.zeros(2)}, "out of type ndarray: give a path"),
        ({"seeds": 3}, "seeds=3: give a list, each item a whole number"),
        ({"seeds": "12"}, "seeds='12': give a list, each item a whole number"),
        ({"seeds": [0.5]}, "seeds=[0.5]: give a list, each item a whole number"),
        ({"seeds": np.array(1)}, "seeds of type ndarray: give a list, each item a whole number"),
        ({"share": "x"}, "share='x': give a number"),
        ({"listen": 3}, "listen=3: give a function"),
        ({"axes": ["lr"]}, "axes=['lr']: give a dict, each value a list"),
        ({"axes": {"lr": 0.1}}, "axes={'lr': 0.1}: give a dict, each value a list"),
    ],
)
def test_arguments_of_other_types_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError) as refusal:
        public(**given)
    assert str(refusal.value) == problem


def test_numbers_of_numpy_become_plain() -> None:
    @typed_arguments
    def returned(share: float, **settings: Any) -> tuple[Any, ...]:
        return share, settings["lr"]

    assert [type(value) for value in returned(np.float64(0.5), lr=np.float32(0.1))] == [float, float]


def test_arguments_in_order_are_checked() -> None:
    with pytest.raises(SettingError, match="out=3: give a path"):
        public("a", 3)  # type: ignore[arg-type]


def test_a_device_of_torch_becomes_its_name() -> None:
    @typed_arguments
    def placed(device: str, **settings: Any) -> Any:
        return device, settings

    cpu = torch.device("cpu")
    assert placed(cpu) == placed(device=cpu) == ("cpu", {})  # type: ignore[arg-type]
    assert placed("cuda", device_of_data=torch.device("cuda", 1)) == ("cuda", {"device_of_data": "cuda:1"})
