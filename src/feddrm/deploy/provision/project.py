"""What ``feddrm deploy init`` writes: a project with one folder for the server and one for every site."""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from feddrm.data import Dataset
from feddrm.data.datasets.user import UserDataset
from feddrm.deploy.provision import certificates, templates, wheel
from feddrm.deploy.server.federation_file import CONFIG
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.site_keys import KEYS, site_keys
from feddrm.deploy.site.site_dataset import load_shares
from feddrm.deploy.site.site_masks import SITE_KEYS
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import yaml_bytes


def make_project(
    folder: Path,
    settings: FederationSettings,
    *,
    data: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = (),
    public_keys: Mapping[str, bytes] | None = None,
) -> None:
    """Write a project. A folder that is not empty is refused, because keys are never overwritten.

    ``data`` names a dataset of which every site gets a share. Without it, the sites must name their own data in
    ``site.yaml``. ``hosts`` are further names and addresses of the server, for its certificate. ``public_keys`` are
    those of sites that have made their own key.
    """
    settings.check()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FeddrmError(f"{folder} is not empty: choose another folder, keys are never written over")
    sites = len(settings.clients)
    shares = [{"folder": "data"}] * sites if data is None else _shares(data, sites)
    try:
        _write_project(folder, settings, shares, hosts, public_keys or {})
    except BaseException as error:  # Ctrl-C, too
        for part in folder.iterdir() if folder.is_dir() else ():  # half a project would be refused as not empty
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        if not isinstance(error, OSError):
            raise
        raise FeddrmError(
            f"cannot write {folder} ({error.strerror}): free the disk or choose another folder"
        ) from error


def _write_project(
    folder: Path,
    settings: FederationSettings,
    shares: Sequence[Mapping[str, Any]],
    hosts: Sequence[str],
    public_keys: Mapping[str, bytes],
) -> None:
    server = folder / "server"
    (server / KEYS).mkdir(parents=True)
    certificates.write_certificates(folder / "authority", server, host_names(settings, hosts))
    certificates.write_key_pair(server / KEYS, "server")
    _write_server(server, settings)
    for name, share in zip(settings.clients, shares, strict=True):
        write_site(folder / "sites" / name, name, server, settings, share, public_keys.get(name))
    for name in settings.clients:  # once all sites have a key
        copy_site_keys(folder / "sites" / name, name, server)
    page = {"sites": ", ".join(settings.clients), "host": settings.host, "port": settings.port}
    text = templates.PROJECT_PAGE.format(**page, wheel=wheel.NAME, checksum=wheel.checksum())
    (folder / "README.md").write_text(text)


def _shares(data: Mapping[str, Any], sites: int) -> list[dict[str, Any]]:
    """The share of every site. They are loaded here, so that what is written passes ``feddrm deploy check``.

    Some datasets, such as heart, have clients of their own and are not divided anew.
    """
    name, kind = data["dataset"], Dataset.find(data["dataset"])
    if issubclass(kind, UserDataset):
        raise SettingError(f"--data {name}: it reads your own files: leave it out, and name them in every site.yaml")
    divided = "clients" in {f.name for f in fields(kind)}
    share = {**data, **({"clients": sites} if divided else {})}
    if (shares := len(load_shares(share))) < sites:
        raise SettingError(f"--data {name}: it has {shares} clients, too few for {sites} sites: name fewer sites")
    return [{**share, "client": number} for number in range(sites)]


def host_names(settings: FederationSettings, hosts: Sequence[str]) -> list[str]:
    """All names and addresses for the server's certificate, each once."""
    return list(dict.fromkeys([settings.host, *hosts, "localhost", "127.0.0.1"]))


def write_site(
    site: Path,
    name: str,
    server: Path,
    settings: FederationSettings,
    data: Mapping[str, Any],
    public_key: bytes | None = None,
) -> None:
    """Write a new site's folder, and its public key into the server's.

    With a ``public_key`` the site has made its own key; its folder then gets none.
    """
    site.mkdir(parents=True)
    if public_key is None:
        public_key = write_site_key(site)
    for source in (server / KEYS / "server.pub", server / "ca.crt"):
        (site / source.name).write_bytes(source.read_bytes())
    config: dict[str, Any] = {
        "name": name,
        "server": f"{settings.host}:{settings.port}",
        "device": "cpu",
        "data": data,
    }
    if settings.privacy is not None:
        config["privacy"] = dict(settings.privacy)
    if settings.insecure:
        config["insecure"] = True
    (site / "site.yaml").write_bytes(templates.SITE_COMMENT.encode() + yaml_bytes(config))
    _write_program(site, "site", name)
    page = {"name": name, "server": config["server"], "wheel": wheel.NAME, "checksum": wheel.checksum()}
    (site / "README.md").write_text(templates.SITE_PAGE.format(**page))
    write_atomically(server / KEYS / f"{name}.pub", public_key)  # last: a running server registers it at once


def copy_site_keys(site: Path, name: str, server: Path) -> None:
    """Give a site the public keys of all other sites: it checks their mask keys by them (secure aggregation)."""
    (site / SITE_KEYS).mkdir(exist_ok=True)
    for other, path in site_keys(server / KEYS).items():
        if other != name:
            write_atomically(site / SITE_KEYS / path.name, path.read_bytes())


def write_site_key(site: Path) -> bytes:
    """Write a site's key pair and the secret of its own processes; returns the public key."""
    for name in ("node.key", "node.pub", "secret"):
        if (site / name).exists():
            raise FeddrmError(f"{site / name} is there already, and keys are never written over: move it away first")
    try:
        public = certificates.write_key_pair(site, "node")
        certificates.write_secret(site / "secret", secrets.token_bytes(32))
    except OSError as error:
        raise FeddrmError(f"cannot write into {site} ({error.strerror}): choose another folder") from error
    return public


def _write_server(server: Path, settings: FederationSettings) -> None:
    certificates.write_secret(server / "secret", secrets.token_bytes(32))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}
    comment = "# What the consortium has agreed on. See docs/deploy.md.\n"
    (server / CONFIG).write_bytes(comment.encode() + yaml_bytes(plain))
    _write_program(server, "server", f"of {', '.join(settings.clients)}")
    (server / "app").mkdir()
    (server / "app" / "pyproject.toml").write_text(templates.FLOWER_APP)


def _write_program(folder: Path, role: str, name: str) -> None:
    """What starts a server or a site: the wheel to install, a script and a systemd unit."""
    (folder / wheel.NAME).write_bytes(wheel.wheel())
    script = templates.START.format(role=role, python=shlex.quote(sys.executable), wheel=wheel.NAME)
    (folder / "start.sh").write_text(script)
    (folder / "start.sh").chmod(0o755)
    (folder / f"feddrm-{role}.service").write_text(templates.UNIT.format(role=role, name=name))
