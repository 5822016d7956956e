"""``feddrm deploy init``: a folder for the server, one for every site, ready to be copied where they belong."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from feddrm.deploy.provision import certificates
from feddrm.deploy.provision.templates import PROJECT_PAGE, SERVER_START, SITE_PAGE, SITE_START
from feddrm.deploy.server.federation_settings import CONFIG, ServerSettings
from feddrm.errors import FeddrmError

FLOWER_APP = """[project]
name = "feddrm-app"
version = "1.0.0"
description = "Names the parts of feddrm that Flower runs; both ends run their own installed copy"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "feddrm"

[tool.flwr.app.components]
serverapp = "feddrm.deploy.flower.apps:server_app"
clientapp = "feddrm.deploy.flower.apps:client_app"
"""


def make_project(
    folder: Path,
    settings: ServerSettings,
    *,
    data: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = (),
) -> None:
    """Write everything; an existing folder with something in it is refused.

    ``data`` is a dataset whose shares stand in for the sites' own data; without it every ``site.yaml``
    waits to be told where the data are.
    """
    settings.check()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FeddrmError(f"{folder} is not empty: choose another folder, keys are never written over")
    try:
        (folder / "server" / "keys").mkdir(parents=True)
    except OSError as error:
        raise FeddrmError(f"cannot create {folder} ({error.strerror}): choose another folder") from error
    server = folder / "server"
    names = list(dict.fromkeys([settings.host, *hosts, "localhost", "127.0.0.1"]))
    authority = certificates.write_certificates(folder / "authority", server, names)
    signer = certificates.write_key_pair(server / "keys", "server")
    certificates.write_secret(server / "secret", secrets.token_bytes(32))
    plain = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(settings).items()}
    _write(server / CONFIG, "# What the consortium has settled on. See docs/deploy.md.\n" + _yaml(plain))
    _script(server / "start.sh", SERVER_START)
    app = server / "app"
    app.mkdir()
    _write(app / "pyproject.toml", FLOWER_APP)
    for number, name in enumerate(settings.clients):
        site = folder / "sites" / name
        public = certificates.write_key_pair(site, "node")
        (server / "keys" / f"{name}.pub").write_bytes(public)
        (site / "server.pub").write_bytes(signer)
        (site / "ca.crt").write_bytes(authority)
        certificates.write_secret(site / "secret", secrets.token_bytes(32))
        own = {**data, "clients": len(settings.clients), "client": number} if data is not None else {"folder": "data"}
        config: dict[str, Any] = {
            "name": name,
            "server": f"{settings.host}:{settings.port}",
            "device": "cpu",
            "data": own,
        }
        if settings.privacy is not None:
            config["privacy"] = dict(settings.privacy)
        if settings.insecure:
            config["insecure"] = True
        _write(site / "site.yaml", SITE_HEAD + _yaml(config))
        _script(site / "start.sh", SITE_START)
        _write(site / "README.md", SITE_PAGE.format(name=name, server=config["server"]))
    sites = ", ".join(settings.clients)
    _write(folder / "README.md", PROJECT_PAGE.format(sites=sites, host=settings.host, port=settings.port))


SITE_HEAD = """# What only this site decides. 'data' names where its samples are, one of:
#   data: {folder: data, size: 64}         images in class sub-folders
#   data: {csv: visits.csv, label: outcome}   a table with a header
#   data: {npz: samples.npz}               arrays x and y
#   data: {dataset: digits, clients: 3, client: 0}   a share of a known dataset, for trying out
# 'privacy' is the least that this site demands, whatever the server says: changes no longer than clip, noise of
# at least so many clips, and perhaps an epsilon that all its runs together never exceed:
#   privacy: {clip: 1.0, noise: 3.0, budget: 50}
"""


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
