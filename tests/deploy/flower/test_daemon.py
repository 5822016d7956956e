"""The daemons of server and site, as far as they can be tested without starting one."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.common.config import parse_config_args

from dates import days_from_now
from deployment import Deployed
from feddrm.deploy.flower import daemon
from feddrm.deploy.flower.daemon import free_port, superlink_command
from feddrm.deploy.provision.certificates import write_certificates
from feddrm.deploy.rotating_log import LOG
from feddrm.deploy.site.site_settings import SiteSettings
from refusal import refused

pytestmark = pytest.mark.slow


def test_no_daemon_waits_for_the_statistics_of_a_comparison_or_for_flowers_database() -> None:
    """Each of them would import for longer. A comparison, if the settings ask for one, loads the statistics; SuperLink
    and SuperNode, which are processes of their own, load the database.
    """
    script = (
        "import json, os, sys, feddrm.deploy.flower.daemon\n"
        "print(json.dumps([*sys.modules]), flush=True)\n"
        "os._exit(0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert {"torch", "feddrm.deploy.server.remote_cohort"} <= loaded
    assert not loaded & {"matplotlib", "scipy.interpolate", "scipy.stats", "feddrm.comparison", "feddrm.drm"}
    assert not loaded & {"sqlalchemy", "alembic"}


def test_a_port_that_another_program_uses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "PORT_SECONDS", 0.2)
    port = free_port()
    daemon._wait_for_port("127.0.0.1", port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with refused(f"port {port} cannot be used", "choose another"):
            daemon._wait_for_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("place", "file"), [("server", "secret"), ("server", "tls.key"), ("sites/oslo", "secret"), ("sites/oslo", "ca.crt")]
)
def test_a_file_that_flower_needs_is_missed_at_the_start(
    place: str, file: str, deployed: Callable[..., Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ran, and its Flower process ended again and again; the site's status said 'connecting'."""
    monkeypatch.setattr(daemon, "Supervisor", lambda *words: pytest.fail("it was started"))
    monkeypatch.setenv(daemon.SERVER_FOLDER, "")  # the server sets it; it goes with the test
    folder = deployed().folder / place
    for damage in (lambda: (folder / file).write_bytes(b""), (folder / file).unlink):
        damage()
        with refused(f"{folder / file} is missing or empty", "put it back"):
            (daemon.run_server if place == "server" else daemon.run_site)(folder)
    assert f"{file} is missing" in (folder / LOG).read_text()


def test_a_damaged_database_is_named_before_the_superlink_is_started(
    deployed: Callable[..., Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ran, its SuperLink ended again and again, and the log had a link to a page about SQLAlchemy."""
    folder = deployed().folder / "server"
    path = folder / daemon.DATABASE
    daemon._require_database(path)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE nodes (name TEXT)")
        database.executemany("INSERT INTO nodes VALUES (?)", [("oslo" * 500,)] * 50)
    database.close()
    daemon._require_database(path)
    whole = path.read_bytes()
    monkeypatch.setattr(daemon, "Supervisor", lambda *words: pytest.fail("it was started"))
    monkeypatch.setenv(daemon.SERVER_FOLDER, "")
    for damaged in (b"\x80" * 1000, whole[:5000]):
        path.write_bytes(damaged)
        with refused(f"{path} is broken", "delete it, with link.db-wal and link.db-shm"):
            daemon.run_server(folder)


@pytest.mark.parametrize(
    ("place", "days", "words"),
    [
        ("server", 826, ("tls.crt is valid from", "it has expired, renew it with 'feddrm deploy renew'")),
        ("server", 3651, ("ca.crt is valid from", "it has expired, make a new project")),
        ("server", -3, ("the clock: it says", "set this machine's clock")),
        ("sites/oslo", 3651, ("ca.crt is valid from", "it has expired, ask the coordinator")),
    ],
)
def test_a_certificate_that_nobody_would_accept_is_refused_at_the_start(
    place: str, days: float, words: tuple[str, ...], deployed: Callable[..., Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ran, and told nothing until a site had refused its certificate."""
    monkeypatch.setattr(daemon, "Supervisor", lambda *words: pytest.fail("it was started"))
    monkeypatch.setenv(daemon.SERVER_FOLDER, "")
    folder = deployed().folder / place
    with days_from_now(days), refused(*words):
        (daemon.run_server if place == "server" else daemon.run_site)(folder)
    assert words[0] in (folder / LOG).read_text()


def test_a_key_that_is_not_of_the_certificate_is_refused_at_the_start_and_not_taken_later(
    deployed: Callable[..., Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server said that it runs, and its SuperLink ended again and again; sites said 'connecting'."""
    folder = deployed().folder / "server"
    good = (folder / "tls.key").read_bytes()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    write_certificates(elsewhere / "authority", elsewhere, ["localhost"])
    restarted: list[int] = []

    def change(_: float) -> None:
        if not changes:
            raise KeyboardInterrupt
        changes.pop(0)()

    changes = [
        lambda: (folder / "tls.crt").write_bytes((elsewhere / "tls.crt").read_bytes()),
        lambda: None,
        lambda: (folder / "tls.key").write_bytes((elsewhere / "tls.key").read_bytes()),
        lambda: None,
    ]
    monkeypatch.setattr(daemon, "register_sites", lambda *_: {})
    monkeypatch.setattr(daemon.time, "sleep", change)
    superlink = SimpleNamespace(restart=lambda: restarted.append(len(changes)))
    with pytest.raises(KeyboardInterrupt):
        daemon._follow_files(folder, None, superlink, threading.Event())  # type: ignore[arg-type]
    assert restarted == [1], "the SuperLink was started again with the key that fits, and only then"
    (complaint,) = (folder / "complaints.log").read_text().splitlines()
    assert "tls.key is not the key of tls.crt" in complaint

    (folder / "tls.key").write_bytes(good)
    monkeypatch.setattr(daemon, "Supervisor", lambda *words: pytest.fail("it was started"))
    monkeypatch.setenv(daemon.SERVER_FOLDER, "")
    with refused("tls.key is not the key of tls.crt", "'feddrm deploy renew'"):
        daemon.run_server(folder)


def test_a_certificate_that_ends_soon_is_complained_of_while_the_server_runs(
    deployed: Callable[..., Deployed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing can be registered any more, which needs a valid certificate itself."""
    folder, looks = deployed().folder / "server", []

    def not_reachable(*_: object) -> None:
        raise RuntimeError("no SuperLink")

    def wait(_: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(daemon, "register_sites", not_reachable)
    monkeypatch.setattr(daemon.time, "sleep", wait)
    restarted: list[int] = []
    superlink = SimpleNamespace(restart=lambda: restarted.append(len(looks)))
    with days_from_now(800), pytest.raises(KeyboardInterrupt):
        daemon._follow_files(folder, None, superlink, threading.Event())  # type: ignore[arg-type]
    (complaint,) = (folder / "complaints.log").read_text().splitlines()
    assert complaint.endswith("it ends soon, renew it with 'feddrm deploy renew'")
    assert not restarted


@pytest.mark.parametrize("insecure", [False, True])
def test_flower_runs_no_code_of_a_run_and_uses_tls_unless_told_otherwise(
    insecure: bool, deployed: Callable[..., Deployed]
) -> None:
    """With process isolation, Flower leaves every task to our worker."""
    deployment = deployed(insecure=insecure)
    site = deployment.site_folder("oslo")
    commands = [
        superlink_command(deployment.folder / "server", deployment.settings),
        daemon._supernode_command(site, SiteSettings.read(site), 9999),
    ]
    for command in commands:
        assert command[command.index("--isolation") + 1] == "process"
        assert "--superexec-auth-secret-file" in command
        assert ("--insecure" in command) == insecure
    assert ("--enable-supernode-auth" in commands[0]) != insecure
    assert ("--auth-supernode-private-key" in commands[1]) != insecure


@pytest.mark.parametrize("name", ['a"b', '"', "a\\b", "a'b", "a b=c", "a\nb\x7f", "zürich 東京 😀", "a.toml", "u0022"])
def test_flower_reads_the_sites_folder_as_it_is(name: str) -> None:
    folder = Path("/tmp") / name
    settings = SiteSettings("oslo", "localhost:1", {})
    command = daemon._supernode_command(folder, settings, 9999)
    assert parse_config_args([command[command.index("--node-config") + 1]]) == {"site": str(folder)}


def test_a_message_wakes_the_worker_whatever_its_pause_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wake, looks = threading.Event(), []

    class Client:
        def close(self) -> None:
            looks.append("closed")

    class Connection:
        def client(self) -> Client:
            return Client()

    def look(client: Client, kind: object) -> None:
        if len(looks) == 2:
            raise KeyboardInterrupt
        looks.append("nothing")
        wake.set()  # a message comes right after the look

    monkeypatch.setattr(daemon, "IDLE_SECONDS", 3600.0)
    monkeypatch.setattr(daemon, "take_task", look)
    with pytest.raises(KeyboardInterrupt):
        daemon._take_client_tasks(Connection(), wake)
    assert looks == ["nothing", "nothing", "closed"]
    assert not wake.is_set()
