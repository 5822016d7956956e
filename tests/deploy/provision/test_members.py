"""Sites come and go, and the server's certificate is renewed."""

from __future__ import annotations

import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from feddrm.deploy.provision import members
from feddrm.deploy.provision.certificates import certificate_hosts, write_certificates
from feddrm.deploy.provision.members import add_site, remove_site, renew
from feddrm.deploy.provision.project import make_project, write_site_key
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.site_keys import site_keys
from feddrm.deploy.wire.key_files import load_public_key
from refusal import refused

SETTINGS = FederationSettings(clients=("oslo", "lima", "pune"), host="server.example", port=8443)


@pytest.fixture
def server(tmp_path: Path) -> Path:
    make_project(tmp_path / "f", SETTINGS, hosts=["10.0.0.7"])
    return tmp_path / "f" / "server"


def begin_run(server: Path, finished: bool = False, router: bool = False) -> None:
    run = server / "runs" / "first"
    (run / "router").mkdir(parents=True)
    (run / "settings.json").write_text("{}")
    if finished:
        (run / "summary.json").write_text("{}")
    if router:
        (run / "router" / "manifest.json").write_text("{}")


def test_a_site_with_its_own_key_gets_a_folder_without_one(server: Path, tmp_path: Path) -> None:
    write_site_key(tmp_path / "quito")
    assert stat.S_IMODE((tmp_path / "quito" / "node.key").stat().st_mode) == 0o600
    folder, state = add_site(server, "quito", tmp_path / "quito" / "node.pub")
    assert folder == server.parent / "sites" / "quito"
    assert {"node.key", "node.pub", "secret"}.isdisjoint(path.name for path in folder.iterdir())
    assert yaml.safe_load((folder / "site.yaml").read_text())["server"] == "server.example:8443"
    assert (folder / "ca.crt").read_bytes() == (server / "ca.crt").read_bytes()
    assert not state.begun
    assert FederationSettings.read(server).clients == ("oslo", "lima", "pune", "quito")
    registered = load_public_key(site_keys(server / "keys")["quito"])
    assert registered == load_public_key(tmp_path / "quito" / "node.pub")


def test_without_a_key_one_is_made_and_the_folder_may_be_elsewhere(server: Path, tmp_path: Path) -> None:
    folder, _ = add_site(server, "quito", out=tmp_path / "elsewhere")
    assert folder == tmp_path / "elsewhere"
    assert yaml.safe_load((folder / "site.yaml").read_text())["name"] == "quito"
    assert load_public_key(folder / "node.pub") == load_public_key(server / "keys" / "quito.pub")


def test_while_a_run_goes_on_members_change_and_the_next_run_gets_a_name(server: Path) -> None:
    begin_run(server, router=True)
    _, state = add_site(server, "quito", run="second")
    assert (state.begun, state.finished, state.router) == (True, False, True)
    assert FederationSettings.read(server).run == "second"


def test_a_removed_sites_key_is_kept_aside_and_refused_ever_after(server: Path) -> None:
    public = server.parent / "sites" / "lima" / "node.pub"
    begin_run(server, finished=True)
    assert remove_site(server, "lima").finished
    assert set(site_keys(server / "keys")) == {"oslo", "pune"}
    assert FederationSettings.read(server).clients == ("oslo", "pune")
    with refused("'lima-", "of a removed site", "keygen"):
        add_site(server, "quito", public)
    assert "quito" not in site_keys(server / "keys")
    add_site(server, "lima", out=server.parent / "lima again")  # with a new key


def test_mistakes_change_nothing(server: Path, tmp_path: Path) -> None:
    before = (server / "federation.yaml").read_text()
    with refused("'lima' is a site already"):
        add_site(server, "lima")
    with refused("cannot name a site"):
        add_site(server, "a?b")
    with refused("'quito' is no site of this federation", "oslo, lima, pune"):
        remove_site(server, "quito")
    with refused("is the key of 'oslo', registered"):
        add_site(server, "quito", server / "keys" / "oslo.pub")
    with refused("is there already", "--out"):
        add_site(server, "quito", out=tmp_path)
    remove_site(server, "pune")
    with refused("at least two clients"):
        remove_site(server, "lima")
    assert set(site_keys(server / "keys")) == {"oslo", "lima"}
    assert (server / "federation.yaml").read_text().splitlines()[2:] == before.splitlines()[5:]


@pytest.mark.parametrize(
    "head", ["clients: [oslo, lima]", *(f"clients:{comment}\n- oslo\n- lima" for comment in ("", "  # founders"))]
)
def test_the_rest_of_the_settings_stays_as_people_wrote_it(head: str, server: Path) -> None:
    path = server / "federation.yaml"
    path.write_text(f"# ours\n{head}\ndeadline: 30  # short\ntraining: {{rounds: 3}}\n")
    add_site(server, "Zürich", run="second")
    text = path.read_text()
    assert yaml.safe_load(text)["clients"] == ["oslo", "lima", "Zürich"]
    assert yaml.safe_load(text)["run"] == "second"
    assert text.startswith("# ours\nclients:")
    assert "\ndeadline: 30  # short\ntraining: {rounds: 3}\n" in text


def test_a_renewed_certificate_is_for_the_old_names_and_the_new_ones(server: Path) -> None:
    old = (server / "tls.crt").read_bytes()
    names, end = renew(server, ["mirror.example"])
    assert set(names) == {"server.example", "10.0.0.7", "localhost", "127.0.0.1", "mirror.example"}
    assert (server / "tls.crt").read_bytes() != old
    certificate = x509.load_pem_x509_certificate((server / "tls.crt").read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((server / "ca.crt").read_bytes()))
    assert certificate.not_valid_after_utc == end
    assert set(certificate_hosts(server / "tls.crt")) == set(names)
    assert stat.S_IMODE((server / "tls.key").stat().st_mode) == 0o600


def test_a_certificate_is_renewed_by_the_authority_that_sites_trust_only(server: Path, tmp_path: Path) -> None:
    old = (server / "tls.crt").read_bytes()
    (tmp_path / "other").mkdir()
    write_certificates(tmp_path / "stranger", tmp_path / "other", ["localhost"])
    with refused("is not the key of", "no site would trust it"):
        renew(server, [], tmp_path / "stranger")
    (server.parent / "authority").rename(tmp_path / "safe")
    with refused("ca.key", "--authority"):
        renew(server, [])
    with refused("host 'a b'"):
        renew(server, ["a b"], tmp_path / "safe")
    assert (server / "tls.crt").read_bytes() == old
    renew(server, [], tmp_path / "safe")
    assert (server / "tls.crt").read_bytes() != old


def test_plain_text_has_no_certificate(tmp_path: Path) -> None:
    make_project(tmp_path / "f", FederationSettings(clients=("oslo", "lima"), insecure=True))
    with refused("no certificate to renew"):
        renew(tmp_path / "f" / "server", [])


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    write_site_key(tmp_path / "quito")
    before = (tmp_path / "quito" / "node.key").read_bytes()
    with refused("node.key is there already", "move it away"):
        write_site_key(tmp_path / "quito")
    assert (tmp_path / "quito" / "node.key").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "quito").iterdir()) == ["node.key", "node.pub", "secret"]


def test_sites_that_are_added_at_once_are_all_members(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, before = members._write_members, FederationSettings.read(server).clients

    def slow(*arguments: Any) -> None:
        time.sleep(0.05)  # long enough for the others to read the old members
        write(*arguments)

    monkeypatch.setattr(members, "_write_members", slow)
    names = ("graz", "bonn", "kyiv")
    with ThreadPoolExecutor() as pool:
        folders = [folder for folder, _ in pool.map(lambda name: add_site(server, name), names)]
    clients = FederationSettings.read(server).clients
    assert clients[: len(before)] == before
    assert sorted(clients[len(before) :]) == sorted(names)
    last = folders[names.index(clients[-1])]
    assert {path.stem for path in (last / "keys").glob("*.pub")} == set(clients) - {clients[-1]}


def test_a_site_that_cannot_be_written_leaves_nothing(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same command works once the disk has room: half a site would be refused as there already."""
    before, write = (server / "federation.yaml").read_bytes(), Path.write_text

    def full(path: Path, text: str) -> int:
        if path.name == "README.md":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, text)

    with monkeypatch.context() as patch, refused("quito", "README.md (No space left on device)", "free the disk"):
        patch.setattr(Path, "write_text", full)
        add_site(server, "quito")
    assert not (server.parent / "sites" / "quito").exists()
    assert not (server / "keys" / "quito.pub").exists()
    assert (server / "federation.yaml").read_bytes() == before
    add_site(server, "quito")
