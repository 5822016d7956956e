"""A site's settings. More refusals are in tests/cli/deploy/test_cluster.py, as a person meets them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deployment import Deployed
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
    with refused("no setting 'pol_seconds'", "poll_seconds"):
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
        ({"floors": {"per_sum": 0}}, ["floors: per_sum=0", "1 or more"]),
        ({"floors": {"per_class": True}}, ["floors: per_class=True"]),
        ({"floors": {"per_sum": 2.5}}, ["floors: per_sum=2.5"]),
        ({"floors": {"sum": 5}}, ["floors:", "'sum'", "per_class: 5, per_sum: 20"]),
        ({"floors": 5}, ["floors:", "per_class: 5, per_sum: 20"]),
        ({"floors": {"per_sum": 5}, "share": {"features": True}}, ["single samples' features", "remove it, or floors"]),
    ],
)
def test_floors_that_cannot_be_are_refused(settings: dict[str, object], parts: list[str], tmp_path: Path) -> None:
    values = {"name": "oslo", "server": "localhost:1", "data": {"folder": "data"}, **settings}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(values))
    with refused("site.yaml: ", *parts):
        SiteSettings.read(tmp_path)


def test_a_site_has_no_floors_by_default(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("{name: oslo, server: 'localhost:1', data: {folder: data}}")
    assert not SiteSettings.read(tmp_path).floors.is_set


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"fewest_sites": 2}, "fewest_sites=2: give a whole number from 3 up"),
        ({"fewest_sites": "many"}, "fewest_sites='many'"),
        ({"require_secure_aggregation": "yes"}, "require_secure_aggregation='yes': give true or false"),
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
