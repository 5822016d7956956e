"""What sites hold must fit together before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.server.negotiation import make_brief
from refusal import refused

SETTINGS = ServerSettings(("oslo", "lima", "kyiv"))
SITE: dict[str, Any] = {
    "shape": [4],
    "dtype": "float32",
    "columns": ["a", "b", "c", "d"],
    "crop": False,
    "version": "1",
    "scale": [[0.0], [1.0]],
    "privacy": None,
    "samples": 30,
    "classes": ["healthy", "sick"],
}


def told(**lima: Any) -> dict[str, dict[str, Any]]:
    return {"oslo": SITE, "lima": {**SITE, **lima}, "kyiv": SITE}


def test_classes_are_those_of_all_sites() -> None:
    brief = make_brief(SETTINGS, told(classes=["healthy", "recovered"], samples=20))
    assert (brief.classes, list(brief.sizes)) == (("healthy", "recovered", "sick"), [30, 20, 30])
    assert make_brief(SETTINGS, told(classes=["sick"])).classes == ("healthy", "sick")


@pytest.mark.parametrize("other", ["Sick", "sick ", " SICK"])
def test_one_class_in_two_spellings_is_not_two(other: str) -> None:
    with refused(f"'{other}' at lima", "'sick' at oslo", "spell them alike"):
        make_brief(SETTINGS, told(classes=["healthy", other]))


def test_letters_come_in_both_cases() -> None:
    assert make_brief(SETTINGS, told(classes=["a", "A"])).classes == ("A", "a", "healthy", "sick")


@pytest.mark.parametrize(
    ("key", "value"),
    [("shape", [5]), ("dtype", "uint8"), ("columns", ["a", "b", "d", "c"]), ("crop", True), ("version", "2")],
)
def test_what_differs_is_named_with_both_sites(key: str, value: Any) -> None:
    with refused(f"lima has {key} {value}, oslo {SITE[key]}", "bring all sites to one form"):
        make_brief(SETTINGS, told(**{key: value}))


def test_sites_that_scale_pixels_each_in_its_own_way_have_no_router() -> None:
    """Whose a raw query is decides how it is scaled, and is what a router would be asked."""
    own = told(scale=[[0.5, 0.4, 0.1], [0.1, 0.1, 0.1]])
    with refused("lima scales its pixels by [[0.5, 0.4, 0.1]", "oslo by [[0.0], [1.0]]", "normalise: common"):
        make_brief(SETTINGS, own)
    assert make_brief(ServerSettings(SETTINGS.clients, router=False), own).scale == ((0.0,), (1.0,))


def test_one_class_is_nothing_to_tell_apart() -> None:
    alone = {name: {**SITE, "classes": ["sick"]} for name in told()}
    with refused("all sites together have one class (sick)"):
        make_brief(SETTINGS, alone)
