"""A site's settings. More refusals are in tests/cli/deploy/test_cluster.py, as a person meets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deployment import Deployed
from feddrm.deploy.privacy import PrivacyDemand
from feddrm.deploy.site.site_settings import SiteSettings
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_a_new_project_has_readable_settings(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0}, insecure=True)
    settings = SiteSettings.read(deployment.site_folder("lima"))
    assert (settings.name, settings.server, settings.device) == ("lima", "127.0.0.1:8000", "cpu")
    assert settings.data == {"dataset": "digits", "seed": 7, "clients": 3, "client": 1}
    assert settings.privacy == {"clip": 1.0, "noise": 3.0}
    assert settings.insecure


def test_a_setting_that_does_not_exist_or_is_missing_is_named(deployed: Make) -> None:
    deployment = deployed()
    deployment.change_site("oslo", pol_seconds=1)
    with refused("site.yaml: no site setting 'pol_seconds'", "did you mean 'poll_seconds'?"):
        SiteSettings.read(deployment.site_folder("oslo"))
    deployment.change_site("lima", server="")
    with refused("'server' is missing"):
        SiteSettings.read(deployment.site_folder("lima"))


@pytest.mark.parametrize("resident", [True, False])
def test_the_old_setting_resident_may_be_true_only(resident: bool, deployed: Make) -> None:
    deployment = deployed()
    before = SiteSettings.read(deployment.site_folder("oslo"))
    deployment.change_site("oslo", resident=resident)
    if resident:
        assert SiteSettings.read(deployment.site_folder("oslo")) == before
    else:
        with refused("site.yaml: 'resident: false' is not supported any more", "remove the line"):
            SiteSettings.read(deployment.site_folder("oslo"))


@pytest.mark.parametrize(
    ("share", "complaint"),
    [
        ({"metric": False}, "no share setting 'metric'; did you mean 'metrics'?"),
        ({"metrics": "perhaps"}, "metrics"),
        ("nothing", "share: "),
    ],
)
def test_a_mistake_in_what_a_site_shares_is_named(share: object, complaint: str, deployed: Make) -> None:
    deployment = deployed()
    deployment.change_site("oslo", share=share)
    with refused("site.yaml: share: ", complaint, "as in 'share: {metrics: false}'"):
        SiteSettings.read(deployment.site_folder("oslo"))


def test_a_site_that_demands_privacy_sends_no_sums_of_its_columns(deployed: Make) -> None:
    deployment = deployed()
    deployment.change_site(
        "oslo", privacy={"clip": 1.0, "noise": 3.0}, data={"csv": "a.csv", "label": "y", "schema": "auto"}
    )
    with refused("'schema: auto' sends sums that privacy does not cover: give a schema file"):
        SiteSettings.read(deployment.site_folder("oslo"))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"floors": {"per_sum": 0}}, ["floors: 'per_sum: 0'", "1 or more"]),
        ({"floors": {"per_class": True}}, ["floors: 'per_class: true'"]),
        ({"floors": {"per_sum": 2.5}}, ["floors: 'per_sum: 2.5'"]),
        ({"floors": {"sum": 5}}, ["floors:", "'sum'", "per_class: 5, per_sum: 20"]),
        ({"floors": 5}, ["floors:", "per_class: 5, per_sum: 20"]),
        ({"floors": {"per_sum": 5}, "share": {"features": True}}, ["single samples' features", "remove it, or floors"]),
    ],
)
def test_floors_that_cannot_be_are_refused(settings: dict[str, object], parts: list[str], tmp_path: Path) -> None:
    with refused("site.yaml: ", *parts):
        _read(tmp_path, **settings)


def test_a_site_has_no_floors_by_default(tmp_path: Path) -> None:
    assert not _read(tmp_path).floors.is_set


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"fewest_sites": 2}, "'fewest_sites: 2': give a whole number from 3 up"),
        ({"fewest_sites": "many"}, "'fewest_sites: many'"),
        ({"require_secure_aggregation": "perhaps"}, "'require_secure_aggregation: perhaps': give true or false"),
        (
            {"require_secure_aggregation": True, "data": {"csv": "a.csv", "label": "y", "schema": "auto"}},
            "'schema: auto' sends sums of this site alone",
        ),
    ],
)
def test_a_mistake_in_secure_aggregation_is_named(settings: dict[str, object], reason: str, deployed: Make) -> None:
    deployment = deployed()
    deployment.change_site("oslo", **settings)
    with refused("site.yaml", reason):
        SiteSettings.read(deployment.site_folder("oslo"))


def _read(folder: Path, **settings: object) -> SiteSettings:
    values = {"name": "oslo", "server": "localhost:1", "data": {"folder": "data"}, **settings}
    (folder / "site.yaml").write_text(yaml.safe_dump(values))
    return SiteSettings.read(folder)


def test_values_get_the_types_of_their_settings(tmp_path: Path) -> None:
    """A quoted 'false' would be true: the site would speak without TLS."""
    settings = _read(tmp_path, name=5, insecure="false", poll_seconds="2", privacy={"clip": "1", "noise": "3"})
    assert (settings.name, settings.insecure, settings.poll_seconds) == ("5", False, 2.0)
    assert settings.privacy == {"clip": 1.0, "noise": 3.0}
    assert settings.privacy is not None
    PrivacyDemand(**settings.privacy).check_offer({"clip": 1.0, "noise": 3.0}, "oslo")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"insecure": "perhaps"}, "'insecure: perhaps': give true or false"),
        ({"insecure": None}, "'insecure: null': give true or false"),
        ({"poll_seconds": "fast"}, "'poll_seconds: fast': give a number"),
        ({"poll_seconds": None}, "'poll_seconds: null': give a number"),
        ({"poll_seconds": float("inf")}, "'poll_seconds: inf': give seconds above zero"),
        ({"device": ["a"]}, "'device: [a]': give text"),
        ({"server": ["a"]}, "'server: [a]': give text"),
        *(
            ({"server": server}, f"'server: {server}': give host and port, as in server.example.org:8000")
            for server in ("server.example.org", ":8000", "a:99999", "https://a:8000")
        ),
        ({"privacy": {"clip": 1, "noise": 3, "delta": 2}}, "'delta: 2.0': give positive numbers, delta below 1"),
        ({"floors": {"per_sum": 0}}, "floors: 'per_sum: 0': give a number of samples, 1 or more"),
        ({"privacy": {"clip": 1}}, "privacy: 'noise' is missing (as in 'privacy: {clip: 1, noise: 3}')"),
        ({"share": 5}, "share: 5: give settings (as in 'share: {metrics: false}')"),
        ({"privacy": ["clip"]}, "as in 'privacy: {clip: 1, noise: 3}'"),
        ({"name": True}, "'name: true': give text"),
        ({"name": "../x"}, "name '../x' cannot name a folder: use letters"),
        ({"name": ".."}, "name '..' cannot name a folder"),
        ({"name": "Server"}, "'Server' cannot name a site"),
        ({"data": {}}, "'data' is missing"),
    ],
)
def test_a_value_of_a_wrong_kind_is_named(settings: dict[str, object], reason: str, tmp_path: Path) -> None:
    with refused("site.yaml: ", reason):
        _read(tmp_path, **settings)
