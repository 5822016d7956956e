"""What ``feddrm deploy init`` writes: a project with one folder for the server and one for every site."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feddrm.deploy.provision import certificates
from feddrm.deploy.provision.templates import (
    FLOWER_APP,
    PROJECT_PAGE,
    SERVER_START,
    SITE_COMMENT,
    SITE_PAGE,
    SITE_START,
)
from feddrm.deploy.server.federation_settings import CONFIG, FederationSettings
from feddrm.errors import FeddrmError
from feddrm.io.text import yaml_bytes


def make_project(
    folder: Path,
    settings: FederationSettings,
    *,
    data: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = (),
) -> None:
    """Write a project. A folder that is not empty is refused, because keys are never overwritten.

    ``data`` names a dataset of which every site gets a share. Without it, the sites must name their own data in
    ``site.yaml``. ``hosts`` are further names and addresses of the server, for its certificate.
    """
    settings.check()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FeddrmError(f"{folder} is not empty: choose another folder, keys are never written over")
    server = folder / "server"
    try:
        (server / "keys").mkdir(parents=True)
    except OSError as error:
        raise FeddrmError(f"cannot create {folder} ({error.strerror}): choose another folder") from error
    names = list(dict.fromkeys([settings.host, *hosts, "localhost", "127.0.0.1"]))
    authority = certificates.write_certificates(folder / "authority", server, names)
    server_key = certificates.write_key_pair(server / "keys", "server")
    _write_server(server, settings)
    for number, name in enumerate(settings.clients):
        site = folder / "sites" / name
        (server / "keys" / f"{name}.pub").write_bytes(certificates.write_key_pair(site, "node"))
        (site / "server.pub").write_bytes(server_key)
        (site / "ca.crt").write_bytes(authority)
        share = {**data, "clients": len(settings.clients), "client": number} if data is not None else {"folder": "data"}
        _write_site(site, settings, share)
    sites = ", ".join(settings.clients)
    (folder / "README.md").write_text(PROJECT_PAGE.format(sites=sites, host=settings.host, port=settings.port))


def _write_server(server: Path, settings: FederationSettings) -> None:
    certificates.write_secret(server / "secret", secrets.token_bytes(32))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}
    comment = "# What the consortium has agreed on. See docs/deploy.md.\n"
    (server / CONFIG).write_bytes(comment.encode() + yaml_bytes(plain))
    _write_script(server / "start.sh", SERVER_START)
    (server / "app").mkdir()
    (server / "app" / "pyproject.toml").write_text(FLOWER_APP)


def _write_site(site: Path, settings: FederationSettings, data: Mapping[str, Any]) -> None:
    certificates.write_secret(site / "secret", secrets.token_bytes(32))
    config: dict[str, Any] = {
        "name": site.name,
        "server": f"{settings.host}:{settings.port}",
        "device": "cpu",
        "data": data,
    }
    if settings.privacy is not None:
        config["privacy"] = dict(settings.privacy)
    if settings.insecure:
        config["insecure"] = True
    (site / "site.yaml").write_bytes(SITE_COMMENT.encode() + yaml_bytes(config))
    _write_script(site / "start.sh", SITE_START)
    (site / "README.md").write_text(SITE_PAGE.format(name=site.name, server=config["server"]))


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
