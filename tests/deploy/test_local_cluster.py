"""A local cluster without its processes. tests/deploy/test_end_to_end.py starts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deployment import Deployed
from feddrm.deploy import cluster_status, local_cluster
from feddrm.deploy.process_lock import only_process
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_a_run_needs_a_server(deployed: Make) -> None:
    folder = deployed().folder
    with refused(f"no server runs in {folder / 'server'}: start it with 'feddrm deploy up {folder}'"):
        local_cluster.run(folder, lambda status: None)
    with refused(f"start it with {folder / 'server' / 'start.sh'}"):
        local_cluster.run(folder / "server", lambda status: None)
    assert (folder / "server" / "start.sh").exists()
    assert not cluster_status.status(folder)["wanted"]


def test_a_run_that_lasts_longer_than_the_given_seconds_goes_on(deployed: Make) -> None:
    folder = deployed().folder
    with only_process(folder / "server"), refused("not finished after 0.1 s", "feddrm deploy status"):
        local_cluster.run(folder, lambda status: None, seconds=0.1)
    assert cluster_status.status(folder)["wanted"]


def test_a_run_that_could_not_say_why_it_failed_is_not_waited_for(
    deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the server ends the job, and cannot write the reason into its status."""
    folder = deployed().folder
    monkeypatch.setattr(local_cluster, "begin", lambda project: None)
    with only_process(folder / "server"), refused("the run failed", "feddrm.log", "free the disk"):
        local_cluster.run(folder, lambda status: None, seconds=10)


def test_the_summary_of_a_finished_run_is_returned_without_a_server(deployed: Make) -> None:
    deployment = deployed(router=False)
    deployment.server().go()
    summary = local_cluster.run(deployment.folder, lambda status: pytest.fail("there is nothing to watch"))
    assert summary["rounds"] == 2
    assert cluster_status.status(deployment.folder)["summary"] == summary
