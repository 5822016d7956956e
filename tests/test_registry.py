"""The registry: members by name, and errors that suggest the nearest name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import pytest

import feddrm
from feddrm.data import Dataset
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.registry import Named, built_in, check_choice, first_line, listing, nearest, require_client


@dataclass(frozen=True)
class Tool(Named):
    size: int = 1


@dataclass(frozen=True)
class Hammer(Tool):
    """Drives nails

    and more.
    """

    name: ClassVar[str] = "hammer"
    weight: float = 2.0


def test_members_are_found_by_name_with_their_settings() -> None:
    assert Tool.make("hammer", size=3) == Hammer(size=3)
    assert Hammer.summary() == "Drives nails"
    assert Tool.family == {"hammer": Hammer}
    assert "hammer" not in feddrm.Dataset.family


def test_unknown_names_and_settings_suggest_the_nearest() -> None:
    with pytest.raises(FeddrmError, match=r"unknown tool 'hamer'; did you mean 'hammer'\? \(known: hammer\)"):
        Tool.make("hamer")
    with pytest.raises(FeddrmError, match=r"'hammer' has no setting 'wieght'; did you mean 'weight'\?"):
        Tool.make("hammer", wieght=1)
    with pytest.raises(SettingError, match=r"^'fedavg' has no setting 'lam' \(it has none: leave it out\)$"):
        Method.make("fedavg", lam=0.5)
    assert nearest("AGE", ["Age", "sex"]) == "; did you mean 'Age'?"
    assert nearest("zzz", ["age"]) == ""


def test_values_of_the_wrong_kind_are_refused_and_text_becomes_what_the_field_is() -> None:
    assert Tool.make("hammer", size="3", weight="1e-2") == Hammer(size=3, weight=0.01)
    with pytest.raises(SettingError, match=r"^size='big': give a whole number$"):
        Tool.make("hammer", size="big")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(TypeError, match="'hammer' is already the name of Hammer"):

        class Other(Tool):
            name = "hammer"


def test_a_value_outside_the_known_ones_is_refused() -> None:
    check_choice("shift", "high", ("low", "high"))
    with pytest.raises(SettingError, match=r"^unknown shift 'hihg'; did you mean 'high'\? \(known: low, high\)$"):
        check_choice("shift", "hihg", ("low", "high"))


def test_an_unknown_attribute_of_the_package_is_named() -> None:
    with pytest.raises(AttributeError, match="no attribute 'loda'"):
        feddrm.loda  # noqa: B018


@pytest.mark.parametrize(("package", "family"), [("methods", Method), ("models", Model), ("data/datasets", Dataset)])
def test_what_the_source_lists_is_what_is_registered(package: str, family: type[Named]) -> None:
    registered = {n: c.summary() for n, c in family.family.items() if c.__module__.startswith("feddrm.")}
    assert built_in(package) == registered


def test_of_many_names_an_error_lists_the_first() -> None:
    assert listing(["oslo", "lima"]) == "(there are: oslo, lima)"
    many = [f"c{i}" for i in range(1000)]
    assert listing(many).endswith(", c28, c29, ...; 1,000 in all)")
    with pytest.raises(FeddrmError, match=r"unknown client .c1001.; did you mean .*, c29, \.\.\.; 1,000 in all"):
        require_client("c1001", many)


def test_a_class_that_cannot_be_made_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tool, "family", dict(Tool.family))

    @dataclass(frozen=True)
    class Saw(Tool, ABC):
        name: ClassVar[str] = "saw"

        @abstractmethod
        def cut(self) -> None: ...

    @dataclass(frozen=True, kw_only=True)
    class Drill(Tool):
        name: ClassVar[str] = "drill"
        speed: float

    with pytest.raises(FeddrmError, match=r"^tool 'saw' does not define cut: write it in its class$"):
        Tool.make("saw")
    with pytest.raises(
        SettingError, match=r"^'drill' needs the setting 'speed': give it a value, or its class a defau"
    ):
        Tool.make("drill")
    assert Tool.make("drill", speed=2) == Drill(speed=2.0)


def test_a_class_without_a_docstring_is_listed() -> None:
    assert first_line(None) == first_line("  ") == ""
