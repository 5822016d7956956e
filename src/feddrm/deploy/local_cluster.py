"""A local cluster: start, run and stop the server and all sites of a project on one machine."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from feddrm.checks.findings import require_writable
from feddrm.deploy.cluster_status import folders, member_folders, read_summary, server_folder, start_command
from feddrm.deploy.process_lock import running
from feddrm.deploy.rotating_log import DATED, LOG, last_line
from feddrm.deploy.server.federation_file import read_members
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.status import JOB, STOPPED, read_status
from feddrm.deploy.site.site_settings import SiteSettings
from feddrm.errors import FeddrmError, InterruptedRunError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line

START_SECONDS, STOP_SECONDS = 120.0, 20.0
GOES_ON = "it goes on by itself, see 'feddrm deploy status'"

_started: list[subprocess.Popen[bytes]] = []  # kept, because Python warns of a Popen that is dropped while it runs


def up(project: Path) -> list[str]:
    """Start what is not running yet, each in its own process group with a log in its folder.

    If one of them cannot start, all of them are stopped: a run begins, and ends, with all its sites.
    """
    idle = {name: folder for name, folder in member_folders(project).items() if running(folder) is None}
    for name, folder in idle.items():  # what would end them is reported before anything is started
        (FederationSettings if name == "server" else SiteSettings).read(folder)
        require_writable(folder)
    began, started = time.time(), dict[str, subprocess.Popen[bytes]]()
    try:
        for name, folder in idle.items():
            started[name] = _start("server" if name == "server" else "site", folder)
        _wait_until_ready(idle, started, began)
    except BaseException:  # stop the others, or they would keep their ports
        _stop({name: process.pid for name, process in started.items() if process.poll() is None}, project)
        raise
    return [name for name, process in started.items() if running(idle[name]) == process.pid]


def _start(verb: str, folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "feddrm", "deploy", verb, str(folder.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # it logs to its folder by itself
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _started.append(process)
    return process


def _wait_until_ready(places: Mapping[str, Path], started: Mapping[str, subprocess.Popen[bytes]], began: float) -> None:
    """Wait for all at once, so that one that ends is noticed whatever the others do."""
    late, end = list(started), 0.0
    while late:
        for name, process in started.items():  # where another process runs, ours need not: a second 'up' was faster
            if process.poll() is not None and running(places[name]) is None:
                raise _failure(name, places[name], f"it ended with status {process.returncode}", began)
        before, late = late, [name for name in late if running(places[name], ready=True) is None]
        if end == 0 or len(late) < len(before):
            end = time.monotonic() + START_SECONDS  # for the next one: many need many minutes on few cores
        if late and time.monotonic() > end:
            raise _failure(late[0], places[late[0]], f"not ready after {START_SECONDS:g} s", began)
        time.sleep(0.1)


def _failure(name: str, folder: Path, otherwise: str, began: float) -> FeddrmError:
    """The error of a process that did not start: the last line that it has logged since, with its remedy."""
    line = last_line(folder / LOG, began) or otherwise
    reason = (line.partition(" ")[2] if DATED.match(line) else line).removeprefix("error: ")
    return FeddrmError(f"{name} did not start, and what was started with it is stopped: {reason} ({folder / LOG})")


def down(project: Path) -> list[str]:
    """Stop what runs. Sites stop before the server, so that they can sign off."""
    pids = {name: pid for name, folder in folders(project).items() if (pid := running(folder)) is not None}
    _stop(pids, project)
    return list(pids)


def _stop(pids: Mapping[str, int], project: Path) -> None:
    for name, pid in reversed(list(pids.items())):
        _signal(pid, signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        while running(folders(project)[name]) == pid:  # another process may run there by now
            if time.monotonic() > end:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.1)
    for process in [p for p in _started if p.pid in pids.values() or p.poll() is not None]:
        process.wait(STOP_SECONDS)  # our own children would stay as zombies otherwise
        _started.remove(process)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, number)


def begin(project: Path) -> None:
    """Ask the server to train. It continues on its own, also after a restart."""
    server = server_folder(project)
    if running(server) is None:
        raise FeddrmError(f"no server runs in {server}: start it with {start_command(project)}")
    write_atomically(server / JOB, json_line({"run": read_members(server).run}))


def run(project: Path, on_status: Callable[[Mapping[str, Any]], None], seconds: float | None = None) -> dict[str, Any]:
    """Ask the server to train, follow it to the end, and return the summary. Ctrl-C only ends the watching."""
    server = server_folder(project)
    settings = FederationSettings.read(server)
    settings.check_same(server / "runs" / settings.run)
    summary = read_summary(server, settings.run)
    if summary is not None:
        return summary
    began = time.time()
    begin(project)
    try:
        return _follow(server, settings.run, on_status, began, seconds)
    except KeyboardInterrupt as error:
        raise InterruptedRunError(GOES_ON) from error


def _follow(
    server: Path, run: str, on_status: Callable[[Mapping[str, Any]], None], began: float, seconds: float | None
) -> dict[str, Any]:
    end = math.inf if seconds is None else time.monotonic() + seconds
    while time.monotonic() < end:
        wanted = (server / JOB).exists()  # before the status: what a run leaves is written before its job goes
        current = read_status(server, run)
        if current is not None and current["time"] > began:
            on_status(current)
            if current["what"] == "failed":
                raise FeddrmError(f"the run failed: {current['text']}")
        summary = read_summary(server, run)
        if summary is not None:
            return summary
        if running(server) is None:
            raise FeddrmError(f"the server in {server} has stopped: 'feddrm deploy up' and 'run' go on where it was")
        if not wanted:
            raise FeddrmError(f"the run failed: {STOPPED}")
        time.sleep(0.2)
    raise FeddrmError(f"not finished after {seconds:g} s: {GOES_ON}")
