"""The folders of a project, and what is read of them without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deployment import NAMES, Deployed
from feddrm.deploy import cluster_status
from feddrm.deploy.process_lock import only_process
from feddrm.deploy.server.status import JOB, ServerStatus
from feddrm.deploy.site.site_status import SiteStatus
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_the_folders_of_a_project_are_found_from_its_root_and_from_the_servers_folder(
    deployed: Make, tmp_path: Path
) -> None:
    folder = deployed().folder
    assert cluster_status.folders(folder) == {
        "server": folder / "server",
        **{name: folder / "sites" / name for name in sorted(NAMES)},
    }
    assert cluster_status.server_folder(folder / "server") == folder / "server"
    with refused("is no deployment (no federation.yaml)", "feddrm deploy init"):
        cluster_status.folders(tmp_path)


def test_the_status_names_the_run_and_what_runs_of_it(deployed: Make) -> None:
    folder = deployed().folder
    status = cluster_status.status(folder)
    assert (status["run"], status["summary"], status["wanted"]) == ("first", None, False)
    assert status["processes"] == dict.fromkeys(["server", *sorted(NAMES)])
    site = folder / "sites" / "oslo"
    assert cluster_status.is_site(site)
    assert not cluster_status.is_site(folder / "server")
    assert cluster_status.site_status(site) == {"site": "oslo", "process": None, "disk": None}
    assert cluster_status.run_folder(folder) == folder / "server" / "runs" / "first"


def test_nobody_is_waited_for_by_a_server_or_a_site_that_does_not_run(deployed: Make) -> None:
    folder = deployed().folder
    (folder / "server" / JOB).write_text('{"run": "first"}')
    ServerStatus(folder / "server").record("outstanding", {"waiting": {"lima": 5.0}})
    SiteStatus(folder / "sites" / "oslo").message({"kind": "waiting", "for": {"lima": 5.0}})
    assert "waiting" not in cluster_status.status(folder)["server"]
    assert "waiting" not in cluster_status.site_status(folder / "sites" / "oslo")
    with only_process(folder / "server"), only_process(folder / "sites" / "oslo"):
        assert cluster_status.status(folder)["server"]["waiting"] == {"lima": 5.0}
        assert cluster_status.site_status(folder / "sites" / "oslo")["waiting"] == {"lima": 5.0}
