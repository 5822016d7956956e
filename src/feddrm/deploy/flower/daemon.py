"""The two daemons of a deployment, server and site: each supervises a Flower process and takes its tasks."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from flwr.supercore.constant import TaskType

from feddrm.checks.ports import why_taken
from feddrm.deploy.flower.apps import SERVER_FOLDER, site_at
from feddrm.deploy.flower.pauses import MESSAGE, IdlePause, shorten_first_backoff
from feddrm.deploy.flower.supervisor import Supervisor
from feddrm.deploy.flower.task_worker import (
    FlowerConnection,
    LinkError,
    register_sites,
    run_client_task,
    run_server_task,
    start_run,
    take_task,
)
from feddrm.deploy.process_lock import only_process
from feddrm.deploy.rotating_log import log, logging_to
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.site_keys import KEYS, NODES, REMOVED, site_keys
from feddrm.deploy.server.status import JOB, ServerStatus
from feddrm.deploy.site.site_settings import SiteSettings
from feddrm.deploy.tls_files import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    require_pair,
    require_valid,
    server_certificates,
    site_certificate,
    warnings,
)
from feddrm.deploy.watch.watch_page import WatchPage
from feddrm.deploy.wire.key_files import fingerprint, load_public_key
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line

IDLE_SECONDS, LOOK_SECONDS = 0.1, 1.0
LONGEST_PAUSE = 10.0  # of a worker whose SuperNode tells it when a message has come
PORT_SECONDS = 15.0
DATABASE = "link.db"  # the SuperLink's


def run_site(folder: Path) -> None:
    """Answer the server's messages until a signal ends the process."""
    folder = folder.resolve()
    settings = SiteSettings.read(folder)
    shorten_first_backoff()
    with only_process(folder) as mark_ready, logging_to(folder), _until_signal():
        _require_files(folder, ["secret", *([] if settings.insecure else [AUTHORITY])])
        if not settings.insecure:
            require_valid([site_certificate(folder)])
        site = site_at(str(folder))  # data that cannot be read are reported now, not in a round
        mark_ready()
        site.status.connection(f"connecting to {settings.server}")
        port = free_port()
        wake = threading.Event()
        supernode = Supervisor(
            _supernode_command(folder, settings, port),
            folder,
            lambda text: wake.set() if text == MESSAGE else site.status.connection(text),
        )
        try:
            _take_client_tasks(FlowerConnection(f"127.0.0.1:{port}", folder / "secret", None), wake)
        finally:
            supernode.stop()
            site.status.connection("this site was stopped")


def _supernode_command(folder: Path, settings: SiteSettings, port: int) -> list[str]:
    secure = ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "node.key")]
    return [
        *(sys.executable, "-m", "feddrm.deploy.flower.supernode", str(settings.poll_seconds)),
        *("--superlink", settings.server),
        *(["--insecure"] if settings.insecure else secure),
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
        *("--host", "127.0.0.1", "--port", str(port), "--node-config", _node_config(folder)),
    ]


def _node_config(folder: Path) -> str:
    """The folder as Flower reads it: TOML, in which its parser takes every quotation mark for the end of the text."""
    escaped = (rf"\u{ord(c):04x}" if c in '"\\\x7f' or c < " " else c for c in str(folder))
    return f'site="{"".join(escaped)}"'


def _take_client_tasks(connection: FlowerConnection, wake: threading.Event) -> None:
    """Take the tasks of the site's SuperNode: at once when ``wake`` is set, and now and then without it."""
    client, pause = connection.client(), IdlePause(IDLE_SECONDS, LONGEST_PAUSE)
    try:
        while True:
            try:
                token = take_task(client, TaskType.CLIENT_APP)
                if token is not None:
                    pause.reset()
                    threading.Thread(target=run_client_task, args=(connection, token), daemon=True).start()
                    continue
            except LinkError:
                time.sleep(5 * IDLE_SECONDS)
            if wake.wait(pause.seconds):
                wake.clear()
                pause.reset()
    finally:
        client.close()


def run_server(folder: Path) -> None:
    """Train whenever ``feddrm deploy run`` asks for it, until a signal ends the process."""
    folder = folder.resolve()
    settings = FederationSettings.read(folder)
    os.environ[SERVER_FOLDER] = str(folder)
    shorten_first_backoff()
    with only_process(folder) as mark_ready, logging_to(folder), _until_signal():
        _require_files(folder, ["secret", *([] if settings.insecure else [AUTHORITY, CERTIFICATE, KEY])])
        if not settings.insecure:
            require_valid(server_certificates(folder))
            require_pair(folder)
        _require_database(folder / DATABASE)
        _wait_for_port("127.0.0.1" if settings.local else "", settings.port)
        if settings.watch_port is not None:
            WatchPage(folder, settings.watch_port)
        mark_ready()
        status = ServerStatus(folder)
        for path in folder.glob(f"{DATABASE}*"):  # older versions let others read it
            path.chmod(0o600)
        superlink = Supervisor(
            superlink_command(folder, settings), folder, lambda text: _complain(status, folder / KEYS / REMOVED, text)
        )
        log.info("the server runs: sites reach it at port %s", settings.port)
        authority = None if settings.insecure else folder / AUTHORITY
        connection = FlowerConnection(f"127.0.0.1:{settings.port}", folder / "secret", authority)
        ready = threading.Event()
        if settings.insecure:  # without node authentication there is nothing to register
            ready.set()
        else:
            threading.Thread(target=_follow_files, args=(folder, connection, superlink, ready), daemon=True).start()
        try:
            _run_jobs(folder, connection, ready)
        finally:
            superlink.stop()


def _complain(status: ServerStatus, removed: Path, text: str) -> None:
    """Log what the SuperLink notes. A key of a former member is named."""
    for path in removed.glob("*.pub"):
        if fingerprint(load_public_key(path)) in text:
            text = f"refused the removed site {path.stem.rpartition('-')[0]}"
    status.record("complaint", {"text": text})


def superlink_command(folder: Path, settings: FederationSettings) -> list[str]:
    """The command that starts the SuperLink of a server's folder."""
    tls = {"--ssl-ca-certfile": AUTHORITY, "--ssl-certfile": CERTIFICATE, "--ssl-keyfile": KEY}
    secure = [word for option, name in tls.items() for word in (option, str(folder / name))]
    return [
        *(sys.executable, "-m", "feddrm.deploy.flower.superlink", str(folder / "secret")),
        *("--host", "127.0.0.1" if settings.local else "0.0.0.0", "--port", str(settings.port)),
        *(["--insecure"] if settings.insecure else [*secure, "--enable-supernode-auth"]),
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
        *("--database", str(folder / DATABASE), "--disable-runtime-dependency-installation"),
    ]


def _follow_files(folder: Path, connection: FlowerConnection, superlink: Supervisor, ready: threading.Event) -> None:
    """Register the sites whose keys are in the folder, and again when keys change, also while a run goes on.

    When the certificate has changed, the SuperLink is started again with it; a run that goes on survives that. One that
    ends soon, or has expired, is complained of once per start of the server or of a run.
    """
    status, registered, certificate = ServerStatus(folder), None, (folder / CERTIFICATE).read_bytes()
    while True:
        try:
            # The certificate comes first: once it has expired, nothing can be registered until it is renewed.
            if (now := (folder / CERTIFICATE).read_bytes()) != certificate:
                require_pair(folder)  # until the key fits, the SuperLink goes on with the old one
                certificate = now
                log.info("a new certificate: the SuperLink is started again with it")
                superlink.restart()
            for text in warnings(server_certificates(folder)):
                status.record("complaint", {"text": text})
            keys = site_keys(folder / KEYS)
            current = {name: path.read_bytes() for name, path in keys.items()}
            if current != registered:
                nodes = register_sites(connection, keys)
                write_atomically(folder / NODES, json_line({str(node): name for node, name in nodes.items()}))
                log.info("the sites are %s", ", ".join(keys))
                registered = current
                ready.set()
        except FeddrmError as error:
            status.record("complaint", {"text": str(error)})
        except LinkError:  # the SuperLink is not reachable yet, or a key file has just been removed
            pass
        time.sleep(LOOK_SECONDS)


def _run_jobs(folder: Path, connection: FlowerConnection, ready: threading.Event) -> None:
    """Whenever there is a job, start a Flower run for it, and another one if that breaks off."""
    status, job = ServerStatus(folder), folder / JOB
    while True:
        try:
            if not ready.wait(1.0):
                continue
            if not job.exists():
                time.sleep(5 * IDLE_SECONDS)
                continue
            start_run(connection, folder / "app")
            _run_next_task(connection)
            job.unlink(missing_ok=True)
        except FeddrmError as error:
            status.record("failed", {"text": str(error)})
            job.unlink(missing_ok=True)
            time.sleep(1)
        except LinkError as error:
            # A SuperLink that is not reachable needs no complaint; anything else, such as a full disk, does.
            if not isinstance(error, httpx.HTTPError):
                status.record("complaint", {"text": f"the run broke off ({error}): it is tried again"})
            time.sleep(1)


def _run_next_task(connection: FlowerConnection) -> None:
    """Wait up to a minute for the task of the run that was just started, and run it."""
    client = connection.client()
    try:
        for _ in range(600):
            token = take_task(client, TaskType.SERVER_APP)
            if token is not None:
                run_server_task(connection, token)
                return
            time.sleep(IDLE_SECONDS)
    finally:
        client.close()
    raise RuntimeError("the run that was submitted did not come")


@contextmanager
def _until_signal() -> Iterator[None]:
    """After Ctrl-C, or a signal that the command line treats so, every ``finally`` inside runs; then the process exits.

    A normal exit would wait for Flower's threads. One of them may spend two hours on a message that never comes.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _require_files(folder: Path, names: list[str]) -> None:
    """Refuse to start without a file that Flower's process needs: it would end, and be started again, for ever."""
    for name in names:
        if not (folder / name).is_file() or not (folder / name).stat().st_size:
            raise FeddrmError(
                f"{folder / name} is missing or empty: put it back from a copy, or from where 'init' wrote it"
            )


def _require_database(path: Path) -> None:
    """Refuse to start with a damaged database: the SuperLink would end, and be started again, for ever."""
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = error
    if str(found) != "ok":
        raise FeddrmError(
            f"{path} is broken ({found}): delete it, with {path.name}-wal and {path.name}-shm; the server writes it "
            "again, and a run that has begun goes on"
        )


def _wait_for_port(host: str, port: int) -> None:
    """Wait until the port is free. The SuperLink of a killed server needs a moment to release it."""
    end = time.monotonic() + PORT_SECONDS
    while (reason := why_taken(host, port)) is not None:
        if time.monotonic() > end:
            raise FeddrmError(
                f"port {port} cannot be used ({reason}): choose another in federation.yaml and every site.yaml"
            )
        time.sleep(IDLE_SECONDS)


def free_port() -> int:
    """A port of the loopback interface that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
