"""What ``feddrm deploy check`` finds in a server's folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import yaml

from feddrm.deploy.process_lock import only_process
from feddrm.deploy.provision import certificates
from feddrm.deploy.provision.certificates import write_certificates, write_key_pair
from feddrm.deploy.provision.folder_check import Finding
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.provision.server_check import check_server
from feddrm.deploy.server.federation_settings import FederationSettings
from refusal import refused


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    settings = FederationSettings(clients=("oslo", "lima"), port=free_port(), watch={"port": free_port()})
    make_project(tmp_path / "f", settings)
    return tmp_path / "f" / "server"


def found(folder: Path, level: str | None = None) -> list[Finding]:
    return [finding for finding in check_server(folder) if level in (None, finding.level) and finding.what != "disk"]


def change(folder: Path, **settings: object) -> None:
    path = folder / "federation.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


def test_a_sound_server(server: Path) -> None:
    findings = found(server)
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.what for finding in findings] == [
        *("settings", "folder", "versions", "key", "certificate", "certificate", "port", "port"),
    ]
    assert "2 sites have theirs here" in findings[3].text


def test_a_port_that_is_taken_is_a_problem_unless_this_server_has_it(server: Path) -> None:
    settings = FederationSettings.read(server)
    for port in (settings.port, settings.watch_port):
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            (problem,) = found(server, "problem")
            assert f"port {port} cannot be used" in problem.text
            assert "choose another in federation.yaml" in problem.text
            with only_process(server):
                assert not found(server, "problem")


def test_missing_and_strange_keys_are_problems(server: Path, tmp_path: Path) -> None:
    (server / "keys" / "lima.pub").rename(tmp_path / "lima.pub")
    (problem,) = found(server, "problem")
    assert "lima.pub: put it back" in problem.text
    write_key_pair(tmp_path / "other", "server")
    (server / "keys" / "server.pub").write_bytes((tmp_path / "other" / "server.pub").read_bytes())
    (problem,) = found(server, "problem")
    assert "is not the public half of server.key" in problem.text
    (server / "tls.key").chmod(0o644)
    assert "others can read tls.key: chmod 600" in [finding.text for finding in found(server, "problem")]


def test_the_certificate_must_have_the_host_and_be_valid(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(server, host="other.example")
    (problem,) = found(server, "problem")
    assert "sites use other.example: renew it with 'feddrm deploy renew' --host other.example" in problem.text
    change(server, host="127.0.0.1")
    key = (server / "tls.key").read_bytes()
    (server / "tls.key").write_bytes(key[:100])
    (problem,) = found(server, "problem")
    assert "tls.key is not the key of tls.crt" in problem.text
    (server / "tls.key").write_bytes(key)
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 20)
    write_certificates(server.parent / "authority2", server, ["127.0.0.1"])
    (warning,) = found(server, "warning")
    assert warning.text.startswith("ca.crt is valid from")


def test_settings_that_changed_during_a_run_are_a_problem(server: Path) -> None:
    (server / "runs" / "first").mkdir(parents=True)
    FederationSettings.read(server).record(server / "runs" / "first")
    change(server, training={"rounds": 7})
    (problem,) = found(server, "problem")
    assert "run 'first' began with training.rounds" in problem.text


@pytest.mark.parametrize(
    ("watch", "parts"),
    [
        ({"port": 0}, ["watch: port=0"]),
        ({"prot": 8001}, ["'watch: {port: 8001}'"]),
        ({}, ["'watch: {port: 8001}'"]),
        (8001, ["watch=8001: give settings"]),
        ({"port": "x"}, ["watch: port='x': give a whole number"]),
    ],
)
def test_a_page_that_cannot_be_is_refused(watch: object, parts: list[str], server: Path) -> None:
    change(server, watch=watch)
    with refused(*parts):
        check_server(server)
    change(server, watch={"port": FederationSettings(clients=("a", "b")).port}, port=8000)
    with refused("the port that sites use"):
        check_server(server)
