"""What runs of a project on this machine, and how far it is: read from files, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feddrm.checks.findings import PROBLEM, check_disk
from feddrm.deploy.process_lock import running
from feddrm.deploy.records.audit_trail import AUDIT
from feddrm.deploy.server.federation_file import CONFIG, read_members
from feddrm.deploy.server.status import JOB, last_complaint, read_status, why_stopped
from feddrm.deploy.site.site_status import CONFIG as SITE_CONFIG
from feddrm.deploy.site.site_status import read_site_status, site_name
from feddrm.errors import FeddrmError
from feddrm.io.run_files import RunFiles
from feddrm.io.text import read_json


def folders(project: Path) -> dict[str, Path]:
    """The server's folder and every site's, by name."""
    return {"server": server_folder(project), **{path.name: path for path in site_folders(project)}}


def member_folders(project: Path) -> dict[str, Path]:
    """As :func:`folders`, without the sites that were removed: the server would refuse them for ever."""
    members = read_members(server_folder(project)).clients
    return {n: place for n, place in folders(project).items() if n == "server" or site_name(place) in members}


def site_folders(project: Path) -> list[Path]:
    """The folders of a project's sites that are on this machine."""
    return [path for path in sorted((project / "sites").glob("*")) if path.is_dir()]


def run_folder(folder: Path) -> Path:
    """The folder of the current run of a project or a server. A run's own folder may be given, too."""
    if (folder / AUDIT).exists():
        return folder
    server = server_folder(folder)
    return server / "runs" / read_members(server).run


def server_folder(project: Path) -> Path:
    """The server's folder of a project. The server's folder itself may be given, too."""
    for folder in (project / "server", project):
        if (folder / CONFIG).exists():
            return folder
    raise FeddrmError(f"{project} is no deployment (no {CONFIG}): make one with 'feddrm deploy init'")


def start_command(project: Path) -> str:
    """What starts the server of a project. Of its own folder 'up' starts the server alone: the sites are elsewhere."""
    server = server_folder(project)
    return str(server / "start.sh") if project == server else f"'feddrm deploy up {project}'"


def status(project: Path) -> dict[str, Any]:
    """Which processes run here, what the server is doing, and how its last round went."""
    server = server_folder(project)
    run = read_members(server).run
    processes, current = {name: running(folder) for name, folder in folders(project).items()}, read_status(server, run)
    summary = read_summary(server, run)
    if summary is None and current is not None and (why := why_stopped(server, run, begun=True)) is not None:
        current = {**current, "what": "failed", "text": why}  # a full disk keeps the server from saying so
        current = {key: value for key, value in current.items() if key not in ("for", "step", "waiting")}
    if current is not None and processes["server"] is None:
        current.pop("waiting", None)  # it was waited for when the server stopped
    return {
        "run": run,
        "processes": processes,
        "wanted": (server / JOB).exists(),
        "server": current,
        "complaint": last_complaint(server),
        "summary": summary,
        "disk": full_disk(server),
    }


def is_site(folder: Path) -> bool:
    """Whether this is the folder of a single site."""
    return (folder / SITE_CONFIG).exists()


def site_status(folder: Path) -> dict[str, Any]:
    """What a site knows: its process, its connection, the server's last message, whom the server waits for."""
    process, status = running(folder), read_site_status(folder) or {}
    if process is None:
        status.pop("waiting", None)  # it does not know any more
    if process is None and status.get("connected"):  # it was killed, and could not write any more
        status |= {"connected": False, "reason": "this site does not run; it was connected"}
    return {"site": site_name(folder), "process": process, **status, "disk": full_disk(folder)}


def full_disk(folder: Path) -> str | None:
    """What to do where the disk of a folder has hardly any room: what runs there cannot write that down. Else None."""
    (finding,) = check_disk(folder)
    return finding.text if finding.level == PROBLEM else None


def read_summary(server: Path, run: str) -> dict[str, Any] | None:
    """The summary of a server's run, None until it is finished."""
    path = RunFiles(server / "runs" / run).summary_file
    return read_json(path, "delete it: 'feddrm deploy run' writes it again") if path.exists() else None
