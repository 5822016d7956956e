"""Changes of a federation that exists: sites come and go, the server's certificate is renewed."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from feddrm.deploy.provision.certificates import certificate_hosts, renew_certificate
from feddrm.deploy.provision.project import copy_site_keys, host_names, write_site
from feddrm.deploy.server.federation_file import CONFIG
from feddrm.deploy.server.federation_settings import RUN_SETTINGS, RUN_SPEC, FederationSettings, check_host
from feddrm.deploy.server.site_keys import KEYS, REMOVED, site_keys
from feddrm.deploy.wire.key_files import fingerprint, load_public_key
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import changing, write_atomically
from feddrm.io.text import read_json
from feddrm.router.artifact import MANIFEST
from feddrm.runs.folder import RunFolder


@dataclass(frozen=True)
class RunState:
    """The run that ``federation.yaml`` names: has it begun, is it finished, does it have a router, who began it."""

    folder: Path
    begun: bool
    finished: bool
    router: bool
    members: tuple[str, ...] = ()

    @classmethod
    def of(cls, server: Path, settings: FederationSettings) -> RunState:
        run = RunFolder(server / "runs" / settings.run)
        paths = (run.path / RUN_SETTINGS, run.summary_file, run.router / MANIFEST)
        begun, finished, router = (path.exists() for path in paths)
        spec = run.path / RUN_SPEC
        members = read_json(spec, "put it back from a copy, or choose another 'run'")["names"] if spec.exists() else ()
        return cls(run.path, begun, finished, router, tuple(members))


def read_public_key(path: Path, keys: Path) -> bytes:
    """A site's public key to be registered. A key that belongs, or has belonged, to a site is refused."""
    key = load_public_key(path)
    for other in [*keys.glob("*.pub"), *(keys / REMOVED).glob("*.pub")]:
        if load_public_key(other) == key:
            former = "of a removed site, and is not accepted again" if other.parent.name == REMOVED else "registered"
            raise FeddrmError(
                f"{path} ({fingerprint(key)}) is the key of '{other.stem}', {former}: make a new one with "
                f"'feddrm deploy keygen'"
            )
    return path.read_bytes()


def add_site(
    server: Path, name: str, key: Path | None = None, out: Path | None = None, run: str | None = None
) -> tuple[Path, RunState]:
    """Register a site and write its folder; returns the folder and the run that it does not take part in.

    A server that runs accepts the site within seconds. ``key`` is the public key that the site made; without it, the
    key is made here. ``run`` names the next run.
    """
    with changing(server), _writing(server):
        return _add_site(server, name, key, out, run)


def _add_site(server: Path, name: str, key: Path | None, out: Path | None, run: str | None) -> tuple[Path, RunState]:
    settings = FederationSettings.read(server)
    if name in settings.clients or name in site_keys(server / KEYS):
        raise SettingError(f"'{name}' is a site already: choose another name, or remove it first")
    after = replace(settings, clients=(*settings.clients, name), run=run or settings.run)
    after.check()
    public = None if key is None else read_public_key(key, server / KEYS)
    folder = out or server.resolve().parent / "sites" / name
    if folder.exists():
        raise FeddrmError(f"{folder} is there already: choose another folder with --out")
    state = RunState.of(server, settings)
    try:
        write_site(folder, name, server, after, {"folder": "data"}, public)
        copy_site_keys(folder, name, server)
        _write_members(server, after)
    except (OSError, FeddrmError):  # half a site would be refused as there already
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            (server / KEYS / f"{name}.pub").unlink(missing_ok=True)
        raise
    return folder, state


def remove_site(server: Path, name: str, run: str | None = None) -> RunState:
    """Take a site out of the federation; returns the state of the run that it took part in.

    Its key goes first: a server that runs takes no message of it any more, within seconds.
    """
    with changing(server), _writing(server):
        return _remove_site(server, name, run)


def _remove_site(server: Path, name: str, run: str | None) -> RunState:
    settings = FederationSettings.read(server)
    keys = site_keys(server / KEYS)
    if name not in settings.clients:
        raise SettingError(f"'{name}' is no site of this federation: there are {', '.join(settings.clients)}")
    after = replace(settings, clients=tuple(c for c in settings.clients if c != name), run=run or settings.run)
    replace(after, secure_aggregation=False).check()  # a site can leave even if too few for a masked sum are left
    if name in keys:
        short = fingerprint(load_public_key(keys[name])).removeprefix("SHA256:")[:8].replace("/", "_")
        (server / KEYS / REMOVED).mkdir(exist_ok=True)
        keys[name].rename(server / KEYS / REMOVED / f"{name}-{short}.pub")
    state = RunState.of(server, settings)
    _write_members(server, after)
    return state


def renew(server: Path, hosts: Sequence[str], authority: Path | None = None) -> tuple[list[str], datetime.datetime]:
    """Write a new certificate of the server, for its old names and ``hosts``; returns them and until when it is valid.

    A server that runs starts its SuperLink again with it, within seconds.
    """
    settings = FederationSettings.read(server)
    if settings.insecure:
        raise FeddrmError(f"{server} uses no TLS ('insecure: true' in {CONFIG}): there is no certificate to renew")
    for host in hosts:
        check_host(host)
    names = host_names(settings, [*certificate_hosts(server / "tls.crt"), *hosts])
    return names, renew_certificate(authority or server.resolve().parent / "authority", server, names)


@contextmanager
def _writing(server: Path) -> Iterator[None]:
    """Name the file that could not be written."""
    try:
        yield
    except OSError as error:
        place = error.filename or server
        raise FeddrmError(
            f"cannot write {place} ({error.strerror}): free the disk, or make its folder writable"
        ) from error


def _write_members(server: Path, settings: FederationSettings) -> None:
    """Change ``clients`` and ``run`` in ``federation.yaml``; the rest of the file stays as people wrote it."""
    path = server / CONFIG
    text = path.read_text()
    values = {"clients": list(settings.clients), "run": settings.run}
    for key, value in values.items():
        document = yaml.compose(text)
        node = next((v for k, v in document.value if k.value == key), None) if document is not None else None
        shown = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n")
        if node is None:
            text = f"{text.rstrip()}\n{key}: {shown}"
            continue
        before, rest = text[: node.start_mark.index], text[node.end_mark.index :]
        if before.rstrip().endswith(f"{key}:"):  # not so if a comment stands behind the key
            before = before.rstrip()
        text = f"{before} {shown.strip()}" + ("" if rest.startswith("\n") else "\n") + rest
    write_atomically(path, text.encode())
