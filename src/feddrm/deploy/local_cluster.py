"""Everything of a project on one machine, for trying out: started, asked to train, looked at, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feddrm.deploy.flower.apps import COMPLAINTS
from feddrm.deploy.flower.daemon import JOB, read_status, running
from feddrm.deploy.server.federation_settings import CONFIG, ServerSettings
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically

LOG = "feddrm.log"
START_SECONDS, STOP_SECONDS = 120.0, 20.0  # whoever ends before that is not waited for

_started: list[subprocess.Popen[bytes]] = []  # they outlive us on purpose: nobody is to warn of that


def folders(project: Path) -> dict[str, Path]:
    """The server's folder and every site's, by name."""
    server = server_folder(project)
    return {"server": server, **{path.name: path for path in sorted((project / "sites").glob("*")) if path.is_dir()}}


def server_folder(project: Path) -> Path:
    """A project's server folder, or the folder itself where it is one."""
    for folder in (project / "server", project):
        if (folder / CONFIG).exists():
            return folder
    raise FeddrmError(f"{project} is no deployment (no {CONFIG}): make one with 'feddrm deploy init'")


def up(project: Path) -> list[str]:
    """Start what does not run yet; each in a process group of its own, with a log in its folder."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    for name, folder in folders(project).items():
        if running(folder) is not None:
            continue
        verb = "server" if name == "server" else "site"
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "feddrm", "deploy", verb, str(folder.resolve())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _started.append(process)
        started[name] = process
    try:
        for name, process in started.items():
            _wait(name, folders(project)[name], process)
    except BaseException:  # or what did start would stay, and hold its port
        _stop({name: process.pid for name, process in started.items() if process.poll() is None}, project)
        raise
    return list(started)


def _wait(name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if running(folder, ready=True) is not None:
            return
        time.sleep(0.1)
    last = (folder / LOG).read_text().strip().splitlines()[-1:] or ["nothing in its log"]
    raise FeddrmError(f"{name} did not start ({last[0]}): see {folder / LOG}")


def down(project: Path) -> list[str]:
    """Stop what runs: sites first, so that they can say good-bye."""
    alive = {name: pid for name, folder in folders(project).items() if (pid := running(folder)) is not None}
    _stop(alive, project)
    return list(alive)


def _stop(alive: Mapping[str, int], project: Path) -> None:
    for name in reversed(list(alive)):
        os.kill(alive[name], signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        while running(folders(project)[name]) is not None:
            if time.monotonic() > end:
                os.kill(alive[name], signal.SIGKILL)
            time.sleep(0.1)
    for process in [p for p in _started if p.pid in alive.values() or p.poll() is not None]:
        process.wait(STOP_SECONDS)  # those that were ours leave nothing behind
        _started.remove(process)


def status(project: Path) -> dict[str, Any]:
    """Who runs here, what the server is doing, and how its last round went."""
    server = server_folder(project)
    settings = ServerSettings.read(server)
    return {
        "run": settings.run,
        "processes": {name: running(folder) for name, folder in folders(project).items()},
        "wanted": (server / JOB).exists(),
        "server": read_status(server),
        "complaint": _last_complaint(server),
        "summary": _summary(server, settings),
    }


def _last_complaint(server: Path) -> str | None:
    path = server / COMPLAINTS
    lines = path.read_text().splitlines() if path.exists() else []
    return lines[-1] if lines else None


def _summary(server: Path, settings: ServerSettings) -> dict[str, Any] | None:
    path = server / "runs" / settings.run / "summary.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


def begin(project: Path) -> None:
    """Ask the server to train; it goes on by itself, also after a restart."""
    server = server_folder(project)
    if running(server) is None:
        raise FeddrmError(f"no server runs in {server}: start it with 'feddrm deploy up {project}'")
    write_atomically(server / JOB, json.dumps({"run": ServerSettings.read(server).run}).encode())


def run(project: Path, on_status: Callable[[Mapping[str, Any]], None], seconds: float | None = None) -> dict[str, Any]:
    """Ask the server to train, and follow it to the end: the summary. Ctrl-C only stops the watching."""
    server = server_folder(project)
    settings = ServerSettings.read(server)
    settings.check_same(server / "runs" / settings.run)
    done = _summary(server, settings)
    if done is not None:
        return done
    asked = time.time()
    begin(project)
    while seconds is None or time.time() < asked + seconds:
        found = read_status(server)
        if found is not None and found["time"] > asked:
            on_status(found)
            if found["what"] == "failed":
                raise FeddrmError(f"the run failed: {found['text']}")
        done = _summary(server, settings)
        if done is not None:
            return done
        if running(server) is None:
            raise FeddrmError(f"the server in {server} has stopped: 'feddrm deploy up' and 'run' go on where it was")
        time.sleep(0.2)
    raise FeddrmError(f"not finished after {seconds:g} s: it goes on by itself, see 'feddrm deploy status'")
