"""Real processes over loopback: TLS, node authentication, sites and server killed during a run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml

from deployment import NAMES, Deployed, assert_same, in_one_process, private_leaves, until
from feddrm.data import load
from feddrm.deploy import cluster_status, local_cluster
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.process_lock import running
from feddrm.deploy.provision.certificates import write_certificates, write_key_pair
from feddrm.deploy.provision.members import add_site, remove_site, renew
from feddrm.deploy.provision.project import write_site_key
from feddrm.deploy.records.audit_check import audit_run
from feddrm.deploy.records.event_log import read_events
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.status import read_status
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.site.site_status import read_site_status
from feddrm.engine import Plan
from feddrm.predictor.predictor import Predictor
from feddrm.report.run_record import RunRecord
from feddrm.router import load_router
from feddrm.serve.gateway_client import GatewayClient
from refusal import refused
from serving import launcher

pytestmark = [pytest.mark.deploy, pytest.mark.slow, pytest.mark.xdist_group("members")]
ROUNDS = 40
LASTING = 60  # rounds of the run in which members come and go: enough for two that start meanwhile
DEADLINE = 25.0
LONG = 300.0  # seconds, for what takes several rounds
ROUTING = {"features": "multiscale", "path_rounds": 1, "rounds": 1}  # every round is a message to every site


@pytest.fixture
def project(deployed: Callable[..., Deployed]) -> Iterator[Deployed]:
    training = {"method": "feddrm", "rounds": ROUNDS}
    watch = {"port": free_port()}
    made = deployed(training=training, port=free_port(), deadline=DEADLINE, routing=ROUTING, watch=watch)
    try:
        yield made
    finally:
        local_cluster.down(made.folder)


def page(project: Deployed, name: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{project.settings.watch_port}/{name}", trust_env=False)


def history(folder: Path) -> list[dict[str, Any]]:
    path = folder / "server" / "runs" / "first" / "checkpoint.safetensors"
    return [dict(entry) for entry in ServerState.load(path).history] if path.exists() else []


def child_of(pid: int) -> int:
    """The Flower process that a server or a site supervises; 0 while there is none."""
    found = [number for path in Path(f"/proc/{pid}/task").glob("*/children") for number in path.read_text().split()]
    return int(found[0]) if found else 0


@pytest.mark.xdist_group("kills")  # in a process of its own, beside all others
def test_every_kind_of_process_is_killed_and_the_outcome_is_that_of_one_process(project: Deployed) -> None:
    """Two sites, the SuperLink, the server in training and in the fit are killed; one site is too slow."""
    folder = project.folder
    local_cluster.up(folder)
    pids = cluster_status.status(folder)["processes"]
    assert all(pids.values())
    local_cluster.begin(folder)
    until(lambda: len(history(folder)) >= 1, "a round", LONG)

    assert page(project, "state").json()["running"]

    os.kill(child_of(pids["lima"]), signal.SIGKILL)  # as in a power cut: it cannot sign off
    os.kill(pids["lima"], signal.SIGKILL)
    os.kill(pids["pune"], signal.SIGKILL)  # the worker without its SuperNode
    until(lambda: any(entry["answered"] == ["oslo"] for entry in history(folder)), "a round with oslo alone", LONG)
    assert set(local_cluster.up(folder)) == {"lima", "pune"}
    until(lambda: history(folder)[-1]["answered"] == list(NAMES), "lima and pune to come back", LONG)

    os.kill(running(folder / "sites" / "pune") or 0, signal.SIGSTOP)
    until(
        lambda: history(folder)[-1]["answered"] == ["oslo", "lima"],
        "a round that does not wait for pune any longer",
        LONG,
    )
    until(lambda: any("pune: " in line for line in _reasons(project)), "the reason on the page", LONG)
    os.kill(running(folder / "sites" / "pune") or 0, signal.SIGCONT)
    until(lambda: history(folder)[-1]["answered"] == list(NAMES), "pune to take part again", LONG)

    before, link = len(history(folder)), child_of(pids["server"])
    os.kill(link, signal.SIGKILL)
    until(lambda: child_of(pids["server"]) not in (0, link), "another SuperLink", 20)
    until(lambda: len(history(folder)) > before + 1, "rounds over the new SuperLink", LONG)

    before = len(history(folder))
    assert before < ROUNDS
    os.kill(pids["server"], signal.SIGKILL)
    until(lambda: running(folder / "server") is None, "the server to be gone", 10)
    assert local_cluster.up(folder) == ["server"]
    fitting = until(
        lambda: (found := read_status(folder / "server", "first")) and "step" in found and found,
        "the router's fit",
        LONG,
    )
    assert fitting["round"] == ROUNDS
    os.kill(cluster_status.status(folder)["processes"]["server"], signal.SIGKILL)
    until(lambda: running(folder / "server") is None, "the server to be gone", 10)
    assert local_cluster.up(folder) == ["server"]
    summary = local_cluster.run(folder, lambda status: None, 240)
    assert summary["rounds"] == ROUNDS
    assert len(history(folder)) == ROUNDS > before
    _tells_what_happened(project)

    with _a_site_with_another_authority(folder):  # it takes its time to start
        # The outcome is that of one process with the same sites in the same rounds.
        only = [[NAMES.index(name) for name in entry["answered"]] for entry in history(folder)]
        assert any(len(who) < 3 for who in only)
        plan = Plan(rounds=ROUNDS, local_steps=4, batch_size=16, lr=0.05)
        expected = in_one_process("feddrm", plan, only)
        assert_same(project, expected)
        assert load_router(folder / "server" / "runs" / "first" / "router").names == NAMES
        for name in NAMES:
            assert (folder / "sites" / name / "clients" / name / "private.safetensors").exists()
            assert not [p for p in (folder / "sites" / name / "clients").iterdir() if p.name != name]
        assert not private_leaves(folder / "server")

        _refuses_strangers(folder, project.settings)
    local_cluster.down(folder)
    _answers_queries(folder, [client.test.x[0] for client in load("digits", clients=3, seed=7).clients])


def _reasons(project: Deployed) -> list[str]:
    """Why sites are missing, as the page shows it."""
    return [f"{site['site']}: {site['reason']}" for site in page(project, "state").json()["sites"] if site["reason"]]


def _tells_what_happened(project: Deployed) -> None:
    """Trail, metrics and events of a run in which everything was killed."""
    server, rounds = project.folder / "server", history(project.folder)
    trail = audit_run(project.run, [project.site_folder(name) for name in NAMES])
    assert trail["compared_with"] == ["summary.json", *(f"the event log of {name}" for name in NAMES)]
    kept = {entry["round"]: entry for entry in trail["entries"] if entry["event"] == "round"}
    assert [kept[entry["round"]]["answered"] for entry in rounds] == [entry["answered"] for entry in rounds]
    assert sum(entry["event"] == "continued" for entry in trail["entries"]) >= 2, "the server was killed twice"
    reasons = {reason for entry in rounds for reason in entry["missing"].values()}
    assert reasons <= {"not connected", "connection lost", "timed out"}
    assert "timed out" in reasons, "a site was halted past its deadline"
    metrics = page(project, "metrics").text
    assert f'feddrm_training_rounds_total{{run="first"}} {float(ROUNDS)}' in metrics
    assert 'feddrm_training_answers_total{outcome="timed out",run="first",site="pune"}' in metrics
    events = [event["event"] for event in read_events(server)]
    assert {"run started", "round started", "site answered", "site missing", "router fitted", "finished"} <= set(events)
    assert page(project, "state").json()["finished"]


def documented(folder: Path, verb: str) -> dict[str, list[str]]:
    """The commands of docs/deploy.md that begin with ``verb``, with this folder and free ports, by what they serve."""
    page = (Path(__file__).parent.parent.parent / "docs" / "deploy.md").read_text()
    lines = re.findall(rf"^feddrm ({verb} .*)$", page, flags=re.MULTILINE)
    words = [line.replace("federation/", f"{folder}/").partition(" --port")[0].split() for line in lines]
    return {Path(line[1]).name: [*line, "--port", "0"] for line in words}


def _answers_queries(folder: Path, samples: list[torch.Tensor]) -> None:
    """Every site answers from its own folder; the gateway has the server's folder, and no private part."""
    (folder / "serving").mkdir()
    with contextmanager(launcher)(folder / "serving") as launch:
        sites = {name: launch(*words) for name, words in documented(folder, "serve-client").items()}
        assert set(sites) == set(NAMES)
        peers = folder / "serving" / "clients.yaml"
        peers.write_text(yaml.safe_dump({name: {"url": site.wait_ready()} for name, site in sites.items()}))
        words = [str(peers) if word == "clients.yaml" else word for word in documented(folder, "serve")["first"]]
        gateway = launch(*words).wait_ready()
        answered = set()
        with GatewayClient(gateway) as client:
            for name, sample in zip(NAMES, samples, strict=True):
                pixels = sample[None].numpy()
                for asked in (
                    client.predict(pixels)[0],
                    client.predict(pixels, without=[n for n in NAMES if n != name])[0],
                ):
                    own = Predictor.load(folder / "sites" / asked["client"] / "clients" / asked["client"])
                    (expected,) = own([("inputs", pixels)])
                    assert asked["label"] == own.classes[int(expected.argmax())]
                    answered.add(asked["client"])
        assert answered == set(NAMES)


@contextmanager
def _a_site_with_another_authority(folder: Path) -> Iterator[None]:
    """A site with another federation's authority, from here to the end of the block: both ends say so."""
    place = folder / "mistaken"
    shutil.copytree(folder / "sites" / "oslo", place)
    (place / "ca.crt").write_bytes(write_certificates(folder / "elsewhere", folder / "elsewhere", ["localhost"]))
    with (place / "site.log").open("wb") as log:
        site = subprocess.Popen([sys.executable, "-m", "feddrm", "deploy", "site", str(place)], stderr=log)
    try:
        yield
        until(lambda: "another authority than ca.crt" in reason_of(place), "the reason", 60)
        until(lambda: "does not trust" in complaints(folder / "server"), "the server's words", 20)
    finally:
        site.terminate()
        site.wait(30)


def _refuses_strangers(folder: Path, settings: FederationSettings) -> None:
    address = ("127.0.0.1", settings.port)
    trusting = ssl.create_default_context(cafile=str(folder / "sites" / "oslo" / "ca.crt"))
    with socket.create_connection(address) as raw, trusting.wrap_socket(raw, server_hostname="127.0.0.1") as line:
        assert line.version() in ("TLSv1.2", "TLSv1.3")
    with socket.create_connection(address) as raw, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(raw, server_hostname="127.0.0.1")
    write_key_pair(folder / "stranger", "node")
    stranger = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "feddrm.deploy.flower.supernode",
                "0.2",
                "--superlink",
                f"127.0.0.1:{settings.port}",
            ),
            *("--root-certificates", str(folder / "sites" / "oslo" / "ca.crt")),
            *("--auth-supernode-private-key", str(folder / "stranger" / "node.key")),
            *("--isolation", "process", "--host", "127.0.0.1", "--port", str(free_port())),
        ],
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(folder / "stranger")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert stranger.returncode != 0
    assert "Failed to initialize the connection" in stranger.stdout + stranger.stderr


def names_served(port: int, authority: Path) -> list[str]:
    """The host names in the certificate of the server that listens on a port."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        raw = socket.create_connection(("127.0.0.1", port))
        with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as line:
            return [str(name) for _, name in (line.getpeercert() or {}).get("subjectAltName", ())]
    except OSError:
        return []


def complaints(server: Path) -> str:
    path = server / "complaints.log"
    return path.read_text() if path.exists() else ""


def reason_of(site: Path) -> str:
    """Why a site says that it is not connected."""
    return str((read_site_status(site) or {}).get("reason", ""))


@pytest.fixture
def long_project(deployed: Callable[..., Deployed]) -> Iterator[Deployed]:
    """A run that lasts while its members change."""
    made = deployed(training={"rounds": LASTING}, port=free_port(), deadline=DEADLINE, routing=ROUTING)
    try:
        yield made
    finally:
        local_cluster.down(made.folder)


def test_members_come_and_go_and_the_certificate_is_renewed_while_a_run_goes_on(
    long_project: Deployed, tmp_path: Path
) -> None:
    """Unregistered keys and plain http are told apart by both ends on the way."""
    folder, server = long_project.folder, long_project.folder / "server"
    local_cluster.up(folder)
    local_cluster.begin(folder)
    until(lambda: len(history(folder)) >= 1, "a round", LONG)

    remove_site(server, "lima")
    until(lambda: history(folder)[-1]["asked"] == ["oslo", "pune"], "a round without lima", LONG)
    until(lambda: "key" in reason_of(folder / "sites" / "lima"), "lima to be told", LONG)
    until(lambda: "refused the removed site lima" in complaints(server), "the server to name it", LONG)

    renew(server, ["server.example"])
    until(
        lambda: "server.example" in names_served(long_project.settings.port, server / "ca.crt"), "the certificate", LONG
    )
    before = len(history(folder))
    until(lambda: len(history(folder)) > before, "a round with the new certificate", LONG)

    write_site_key(tmp_path / "quito")  # at the site, before anybody knows its key
    site, _ = add_site(server, "stranger", out=tmp_path / "stranger")
    for name in ("node.key", "secret"):
        (site / name).write_bytes((tmp_path / "quito" / name).read_bytes())
    own = yaml.safe_load((folder / "sites" / "oslo" / "site.yaml").read_text())
    (site / "site.yaml").write_text(yaml.safe_dump({**own, "name": "quito"}))
    log = (tmp_path / "stranger.log").open("wb")
    started = subprocess.Popen([sys.executable, "-m", "feddrm", "deploy", "site", str(site)], stdout=log, stderr=log)
    plain, _ = add_site(server, "plain", out=tmp_path / "plain")
    (plain / "site.yaml").write_text(yaml.safe_dump({**own, "name": "plain", "insecure": True}))
    other = subprocess.Popen([sys.executable, "-m", "feddrm", "deploy", "site", str(plain)], stdout=log, stderr=log)
    try:
        until(lambda: "does not know this site's key" in reason_of(site), "the words of the server", LONG)
        until(lambda: "refused a node with an unregistered key" in complaints(server), "the server's words", LONG)
        until(lambda: "'insecure: true': remove that line" in reason_of(plain), "the words for plain http", LONG)
        until(lambda: "a caller speaks http to this port" in complaints(server), "the server's words", LONG)
        add_site(server, "quito", tmp_path / "quito" / "node.pub", tmp_path / "quito folder")
        until(lambda: (read_site_status(site) or {}).get("connected"), "the site to be accepted", LONG)
    finally:
        for process in (started, other):
            process.terminate()
            process.wait(30)
        log.close()

    summary = local_cluster.run(folder, lambda status: None, LONG)
    assert (summary["rounds"], summary["removed"], summary["router"]) == (LASTING, ["lima"], None)
    assert list((folder / "sites" / "lima" / "runs" / "first").glob("private-*.safetensors"))
    assert running(folder / "sites" / "lima"), "its process goes on, in case it is added again"


def test_a_port_that_another_program_uses_is_reported_at_once(project: Deployed) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", project.settings.port))
        other.listen()
        with refused("server did not start", f"port {project.settings.port} cannot be used", "choose another"):
            local_cluster.up(project.folder)
    assert not any(cluster_status.status(project.folder)["processes"].values()), "the sites are stopped, too"


@pytest.mark.parametrize("insecure", [False, True], ids=["TLS", "plain text"])
def test_the_folders_work_apart_by_their_start_scripts(
    insecure: bool, deployed: Callable[..., Deployed], tmp_path: Path
) -> None:
    """As on separate machines: every folder is moved away, and the authority is nowhere."""
    made = deployed(port=free_port(), router=False, insecure=insecure)
    homes = {"server": made.folder / "server", **{name: made.folder / "sites" / name for name in NAMES}}
    apart = {name: tmp_path / f"machine-{name}" / "feddrm" for name in homes}
    for name, home in homes.items():
        apart[name].parent.mkdir()
        home.rename(apart[name])
    made.folder.rename(tmp_path / "safe")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    started = [subprocess.Popen([place / "start.sh"], env={**os.environ, "PATH": path}) for place in apart.values()]
    try:
        until(lambda: running(apart["server"]), "the server", 180)
        summary = local_cluster.run(apart["server"], lambda status: None, 120)
        assert summary["rounds"] == 2
        assert summary["metrics"]["own"]["accuracy"]["value"] == summary["average_accuracy"]
        record = RunRecord.read(apart["server"] / "runs" / "first")
        assert 0 < (record.metrics["own", "auroc"].error_bound or 0) < 0.01
        assert record.class_confusion["own"].shape == (10, 10)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
    (tmp_path / "safe").rename(made.folder)
    for name, home in homes.items():
        apart[name].rename(home)
    assert_same(made, in_one_process("feddrm", Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05)))


def test_a_new_project_is_secure_by_default(project: Deployed) -> None:
    site = yaml.safe_load((project.folder / "sites" / "oslo" / "site.yaml").read_text())
    assert "insecure" not in site
    assert FederationSettings.read(project.folder / "server").insecure is False
