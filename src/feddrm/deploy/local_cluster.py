"""A local cluster: start, watch and stop the server and all sites of a project on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddrm.deploy.process_lock import running
from feddrm.deploy.records.audit_trail import AUDIT
from feddrm.deploy.rotating_log import LOG
from feddrm.deploy.server.federation_settings import CONFIG, FederationSettings
from feddrm.deploy.server.status import JOB, last_complaint, read_status
from feddrm.deploy.site.site_settings import CONFIG as SITE_CONFIG
from feddrm.deploy.site.site_settings import SiteSettings
from feddrm.deploy.site.site_status import read_site_status
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, read_json
from feddrm.runs.folder import RunFolder

START_SECONDS, STOP_SECONDS = 120.0, 20.0

_started: list[subprocess.Popen[bytes]] = []  # kept, because Python warns of a Popen that is dropped while it runs


def folders(project: Path) -> dict[str, Path]:
    """The server's folder and every site's, by name."""
    return {"server": server_folder(project), **{path.name: path for path in site_folders(project)}}


def site_folders(project: Path) -> list[Path]:
    """The folders of a project's sites that are on this machine."""
    return [path for path in sorted((project / "sites").glob("*")) if path.is_dir()]


def run_folder(folder: Path) -> Path:
    """The folder of the current run of a project or a server. A run's own folder may be given, too."""
    if (folder / AUDIT).exists():
        return folder
    server = server_folder(folder)
    return server / "runs" / FederationSettings.read(server).run


def server_folder(project: Path) -> Path:
    """The server's folder of a project. The server's folder itself may be given, too."""
    for folder in (project / "server", project):
        if (folder / CONFIG).exists():
            return folder
    raise FeddrmError(f"{project} is no deployment (no {CONFIG}): make one with 'feddrm deploy init'")


def up(project: Path) -> list[str]:
    """Start what is not running yet, each in its own process group with a log in its folder."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    for name, folder in folders(project).items():
        if running(folder) is not None:
            continue
        verb = "server" if name == "server" else "site"
        (FederationSettings if verb == "server" else SiteSettings).read(folder)  # a mistake in them is reported here
        process = subprocess.Popen(
            [sys.executable, "-m", "feddrm", "deploy", verb, str(folder.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # it logs to its folder by itself
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _started.append(process)
        started[name] = process
    try:
        for name, process in started.items():
            _wait_until_ready(name, folders(project)[name], process)
    except BaseException:  # stop the others, or they would keep their ports
        _stop({name: process.pid for name, process in started.items() if process.poll() is None}, project)
        raise
    return list(started)


def _wait_until_ready(name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if running(folder, ready=True) is not None:
            return
        time.sleep(0.1)
    lines = (folder / LOG).read_text().strip().splitlines() if (folder / LOG).exists() else []
    last = lines[-1].partition(" ")[2] if lines else "nothing in its log"
    raise FeddrmError(f"{name} did not start ({last}): see {folder / LOG}")


def down(project: Path) -> list[str]:
    """Stop what runs. Sites stop before the server, so that they can sign off."""
    pids = {name: pid for name, folder in folders(project).items() if (pid := running(folder)) is not None}
    _stop(pids, project)
    return list(pids)


def _stop(pids: Mapping[str, int], project: Path) -> None:
    for name in reversed(list(pids)):
        os.kill(pids[name], signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        while running(folders(project)[name]) is not None:
            if time.monotonic() > end:
                os.kill(pids[name], signal.SIGKILL)
            time.sleep(0.1)
    for process in [p for p in _started if p.pid in pids.values() or p.poll() is not None]:
        process.wait(STOP_SECONDS)  # our own children would stay as zombies otherwise
        _started.remove(process)


def status(project: Path) -> dict[str, Any]:
    """Which processes run here, what the server is doing, and how its last round went."""
    server = server_folder(project)
    settings = FederationSettings.read(server)
    return {
        "run": settings.run,
        "processes": {name: running(folder) for name, folder in folders(project).items()},
        "wanted": (server / JOB).exists(),
        "server": read_status(server),
        "complaint": last_complaint(server),
        "summary": _summary(server, settings),
    }


def is_site(folder: Path) -> bool:
    """Whether this is the folder of a single site."""
    return (folder / SITE_CONFIG).exists()


def site_status(folder: Path) -> dict[str, Any]:
    """What a site knows: its process, its connection, the server's last message, whom the server waits for."""
    process, status = running(folder), read_site_status(folder) or {}
    if process is None and status.get("connected"):  # it was killed, and could not write any more
        status |= {"connected": False, "reason": "this site does not run; it was connected"}
    return {"site": SiteSettings.read(folder).name, "process": process, **status}


def _summary(server: Path, settings: FederationSettings) -> dict[str, Any] | None:
    path = RunFolder(server / "runs" / settings.run).summary_file
    return read_json(path, "delete it: 'feddrm deploy run' writes it again") if path.exists() else None


def begin(project: Path) -> None:
    """Ask the server to train. It continues on its own, also after a restart."""
    server = server_folder(project)
    if running(server) is None:
        raise FeddrmError(f"no server runs in {server}: start it with 'feddrm deploy up {project}'")
    write_atomically(server / JOB, json_line({"run": FederationSettings.read(server).run}))


def run(project: Path, on_status: Callable[[Mapping[str, Any]], None], seconds: float | None = None) -> dict[str, Any]:
    """Ask the server to train, follow it to the end, and return the summary. Ctrl-C only ends the watching."""
    server = server_folder(project)
    settings = FederationSettings.read(server)
    settings.check_same(server / "runs" / settings.run)
    summary = _summary(server, settings)
    if summary is not None:
        return summary
    began = time.time()
    begin(project)
    while seconds is None or time.time() < began + seconds:
        current = read_status(server)
        if current is not None and current["time"] > began:
            on_status(current)
            if current["what"] == "failed":
                raise FeddrmError(f"the run failed: {current['text']}")
        summary = _summary(server, settings)
        if summary is not None:
            return summary
        if running(server) is None:
            raise FeddrmError(f"the server in {server} has stopped: 'feddrm deploy up' and 'run' go on where it was")
        time.sleep(0.2)
    raise FeddrmError(f"not finished after {seconds:g} s: it goes on by itself, see 'feddrm deploy status'")
