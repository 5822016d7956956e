"""A local cluster without its processes. tests/deploy/test_end_to_end.py starts them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from deployment import NAMES, Deployed
from feddrm.checks import findings
from feddrm.deploy import cluster_status, local_cluster
from feddrm.deploy.process_lock import only_process
from feddrm.deploy.provision.members import remove_site
from feddrm.deploy.rotating_log import LOG, RotatingLog
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


def test_ctrl_c_says_that_the_run_goes_on(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = deployed().folder

    def interrupt(server: Path, run: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_cluster, "read_status", interrupt)
    with (
        only_process(folder / "server"),
        refused("interrupted: it goes on by itself, see 'feddrm deploy status'") as it,
    ):
        local_cluster.run(folder, lambda status: None)
    assert it.value.exit_code == 130
    assert cluster_status.status(folder)["wanted"]


def test_a_clock_that_jumps_does_not_end_the_watching(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = deployed().folder
    real, looks = time.time, []

    def jump(project: Path) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + 3600)

    def look(server: Path, run: str) -> None:
        looks.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_cluster, "begin", jump)
    monkeypatch.setattr(local_cluster, "read_status", look)
    with only_process(folder / "server"), refused("interrupted"):
        local_cluster.run(folder, lambda status: None, seconds=60)
    assert looks == ["first"]


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


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[subprocess.Popen[bytes]]]:
    """Start programs in the place of server and sites: each stays, but that of pune ends; returns them by folder."""
    started: dict[str, list[subprocess.Popen[bytes]]] = {}

    def start(verb: str, folder: Path) -> subprocess.Popen[bytes]:
        code = "import sys; sys.exit(3)" if folder.name == "pune" else "import time; time.sleep(600)"
        process = subprocess.Popen([sys.executable, "-c", code])
        started.setdefault(folder.name, []).append(process)
        return process

    monkeypatch.setattr(local_cluster, "_start", start)
    return started


def test_a_site_that_was_removed_is_not_started(
    deployed: Make, programs: dict[str, list[subprocess.Popen[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started whenever the others were, and the server refused it for ever."""
    folder = deployed().folder
    remove_site(folder / "server", "pune")
    monkeypatch.setattr(local_cluster, "_wait_until_ready", lambda *_: None)
    local_cluster.up(folder)
    assert set(programs) == {"server", "lima", "oslo"}
    for process in (p for some in programs.values() for p in some):
        process.kill()
        process.wait()


def test_a_mistake_in_a_settings_file_is_reported_before_anything_is_started(
    deployed: Make, programs: dict[str, list[subprocess.Popen[bytes]]]
) -> None:
    """The server was started first, and went on when the command had ended."""
    deployment = deployed()
    deployment.change_site("pune", device="abacus")
    with refused(str(deployment.site_folder("pune") / "site.yaml"), "device 'abacus'"):
        local_cluster.up(deployment.folder)
    assert programs == {}


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_started(
    deployed: Make, programs: dict[str, list[subprocess.Popen[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ended without a word, because it could not write its log either."""
    folder = deployed().folder
    temporary_file = findings.NamedTemporaryFile

    def read_only(dir: Path, **settings: Any) -> Any:
        if dir.name == "oslo":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return temporary_file(dir=dir, **settings)

    monkeypatch.setattr(findings, "NamedTemporaryFile", read_only)
    with refused(f"cannot write into {folder / 'sites' / 'oslo'} (Permission denied)"):
        local_cluster.up(folder)
    assert programs == {}


def test_a_site_that_ends_is_named_with_its_reason_and_the_others_are_stopped(
    deployed: Make, programs: dict[str, list[subprocess.Popen[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the others ever gets ready here: waiting for one after the other, the end was noticed too late."""
    deployment = deployed()
    folder, log = deployment.folder, deployment.site_folder("pune") / LOG
    log.write_text("2020-01-01T00:00:00Z error: of an earlier start\n")
    with refused("pune did not start", "it ended with status 3", str(log)) as caught:
        local_cluster.up(folder)
    assert "earlier" not in str(caught.value)
    start = local_cluster._start

    def start_with_words(verb: str, place: Path) -> subprocess.Popen[bytes]:
        if place.name == "pune":
            with closing(RotatingLog(place / LOG)) as words:
                words.line("error: cannot read x.npz: give an .npz file")
        return start(verb, place)

    monkeypatch.setattr(local_cluster, "_start", start_with_words)
    with refused("pune did not start, and what was started with it is stopped: cannot read x.npz: give an .npz file"):
        local_cluster.up(folder)
    assert {name: len(started) for name, started in programs.items()} == dict.fromkeys(("server", *NAMES), 2)
    assert all(process.wait(20) for started in programs.values() for process in started)


def test_a_second_up_leaves_what_the_first_has_started(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find nothing that runs, and start everything; one process of every folder gets its lock."""
    folder = deployed().folder
    ended: list[subprocess.Popen[bytes]] = []
    with ExitStack() as first:

        def start(verb: str, place: Path) -> subprocess.Popen[bytes]:
            first.enter_context(only_process(place))()
            ended.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(1)"]))
            return ended[-1]

        monkeypatch.setattr(local_cluster, "_start", start)
        assert local_cluster.up(folder) == []
        assert all(cluster_status.status(folder)["processes"].values())
    assert [process.wait(20) for process in ended] == [1, 1, 1, 1]
