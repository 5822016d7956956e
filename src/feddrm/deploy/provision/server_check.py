"""What ``feddrm deploy check`` finds in a server's folder: settings, keys, certificate, ports, disk and versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from feddrm.checks.findings import OK, PROBLEM, Finding, check_disk, collect
from feddrm.checks.ports import why_taken
from feddrm.deploy.process_lock import running
from feddrm.deploy.provision.certificates import certificate_hosts
from feddrm.deploy.provision.folder_check import check_folder, check_loopback, check_versions
from feddrm.deploy.server.federation_file import CONFIG
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.site_keys import KEYS
from feddrm.deploy.tls_files import CERTIFICATE, RENEW, require_pair, server_certificates
from feddrm.deploy.wire.key_files import fingerprint, load_private_key, load_public_key


def check_server(folder: Path) -> list[Finding]:
    """Check everything. Settings that cannot be read end it, because the rest depends on them."""
    settings = FederationSettings.read(folder)
    private = [folder / KEYS / "server.key", folder / "secret", folder / "tls.key"]
    steps = {
        "settings": lambda: _settings(folder, settings),
        "folder": lambda: check_folder(folder, [folder / "runs"], private),
        "disk": lambda: check_disk(folder),
        "versions": lambda: check_versions(folder),
        "key": lambda: _keys(folder, settings),
        "certificate": lambda: iter(()) if settings.insecure else _certificate(folder, settings),
        "proxy": check_loopback,
        "port": lambda: _ports(folder, settings),
    }
    return collect(steps)


def _settings(folder: Path, settings: FederationSettings) -> Iterator[Finding]:
    settings.check_same(folder / "runs" / settings.run)
    rounds = settings.training.get("rounds", "the usual number of")
    yield Finding("settings", OK, f"run '{settings.run}': {rounds} rounds with {', '.join(settings.clients)}")


def _keys(folder: Path, settings: FederationSettings) -> Iterator[Finding]:
    keys = folder / KEYS
    own = fingerprint(load_private_key(keys / "server.key").public_key())
    if (keys / "server.pub").exists() and fingerprint(load_public_key(keys / "server.pub")) != own:
        text = f"{keys / 'server.pub'} is not the public half of server.key: sites that have it refuse this server"
        yield Finding("key", PROBLEM, f"{text}: put the pair back from a copy")
        return
    missing = [name for name in settings.clients if not (keys / f"{name}.pub").exists()]
    if missing:
        text = f"there is no {keys / missing[0]}.pub: put it back, or use 'feddrm deploy remove-site'"
        yield Finding("key", PROBLEM, text)
    else:
        yield Finding("key", OK, f"{own}: as server.pub at every site; {len(settings.clients)} sites have theirs here")


def _certificate(folder: Path, settings: FederationSettings) -> Iterator[Finding]:
    yield from server_certificates(folder)
    require_pair(folder)
    hosts = certificate_hosts(folder / CERTIFICATE)
    if settings.host not in hosts:
        text = f"tls.crt is for {', '.join(hosts)}, sites use {settings.host}: {RENEW} --host {settings.host}"
        yield Finding("certificate", PROBLEM, text)


def _ports(folder: Path, settings: FederationSettings) -> Iterator[Finding]:
    """Whether the ports are free, or used by the server of this folder itself."""
    if running(folder) is not None:
        yield Finding("port", OK, "this server runs, and uses its ports")
        return
    hosts = {settings.port: "127.0.0.1" if settings.local else ""}
    if settings.watch_port is not None:
        hosts[settings.watch_port] = "127.0.0.1"
    for port, host in hosts.items():
        if (reason := why_taken(host, port)) is not None:
            text = f"port {port} cannot be used ({reason}): stop what uses it, or choose another in {CONFIG}"
            yield Finding("port", PROBLEM, text)
        else:
            reach = "sites must reach it" if port == settings.port else "for this machine only"
            yield Finding("port", OK, f"{port} is free: {reach}")
