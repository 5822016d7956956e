"""What ``feddrm deploy check`` finds at a site: its data, folders, key, certificate and clock. No server is needed."""

from __future__ import annotations

import datetime
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from feddrm.data.sources.labelled_samples import SPELLING_REMEDY, short_list, spelling_variants
from feddrm.deploy.provision.certificates import read_certificate
from feddrm.deploy.site.site import KEY, SERVER_KEY
from feddrm.deploy.site.site_dataset import SiteDataset, read_site_dataset
from feddrm.deploy.site.site_settings import SiteSettings
from feddrm.deploy.wire.key_files import fingerprint, load_private_key, load_public_key
from feddrm.errors import FeddrmError
from feddrm.io.connection_errors import explain
from feddrm.io.run_files import CLIENTS_FOLDER, PRIVATE, PRIVATE_HEAD

OK, WARNING, PROBLEM = "ok", "warning", "problem"
FEW = 20  # training samples below which sums tell much of single samples
SOON_DAYS = 30
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0  # Flower refuses requests of a clock that differs by more
SERVER_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: ``level`` is ok, warning or problem."""

    what: str
    level: str
    text: str


def check_site(folder: Path) -> list[Finding]:
    """Check everything; one finding that is a problem does not end the rest."""
    settings = SiteSettings.read(folder)
    steps: dict[str, Callable[[], Iterator[Finding]]] = {
        "data": lambda: _data(read_site_dataset(settings.name, settings.data, folder)),
        "folder": lambda: _folder(folder),
        "key": lambda: _key(folder),
        "certificate": lambda: _certificate(folder) if not settings.insecure else iter(()),
        "server": lambda: _server(folder, settings),
    }
    findings: list[Finding] = []
    for what, step in steps.items():
        try:
            findings += step()
        except FeddrmError as error:
            findings.append(Finding(what, PROBLEM, str(error)))
    return findings


def _data(dataset: SiteDataset) -> Iterator[Finding]:
    client = dataset.client(dataset.classes)
    train, test = client.train, client.test
    shape = " x ".join(map(str, train.x.shape[1:]))
    few = f": sums over so few can tell something about single ones, {FEW} or more are better"
    text = f"{len(train)} training and {len(test)} test samples of {shape} {str(train.x.dtype).removeprefix('torch.')}"
    yield Finding("samples", WARNING if len(train) < FEW else OK, text + (few if len(train) < FEW else ""))
    counts = torch.bincount(torch.cat([train.y, test.y]), minlength=len(dataset.classes)).tolist()
    shown = short_list([f"{name} ({count})" for name, count in zip(dataset.classes, counts, strict=True)])
    yield Finding("classes", OK if len(dataset.classes) > 1 else WARNING, f"{len(dataset.classes)}: {shown}")
    if (pair := spelling_variants(dataset.classes)) is not None:
        yield Finding("spelling", WARNING, f"the classes '{pair[0]}' and '{pair[1]}' {SPELLING_REMEDY}")
    if dataset.columns is not None:
        yield Finding("columns", OK, f"{len(dataset.columns)}: {short_list(_columns(dataset, [train.x, test.x]))}")
        if (pair := spelling_variants(dataset.columns)) is not None:
            yield Finding("spelling", WARNING, f"the columns '{pair[0]}' and '{pair[1]}' {SPELLING_REMEDY}")


def _columns(dataset: SiteDataset, parts: Sequence[Tensor]) -> list[str]:
    """Every column with its range; with ``schema: auto`` with what the site will tell of it."""
    if dataset.sums is not None:
        return [f"{name} ({column})" for name, column in dataset.sums.items()]
    rows = torch.cat(list(parts))
    ranges = zip(dataset.columns or (), rows.min(0).values.tolist(), rows.max(0).values.tolist(), strict=True)
    return [f"{name} ({low:g} to {high:g})" for name, low, high in ranges]


def _folder(folder: Path) -> Iterator[Finding]:
    for place in (folder, folder / "runs", folder / CLIENTS_FOLDER):
        try:
            if place.exists():
                with NamedTemporaryFile(dir=place):
                    pass
        except OSError as error:
            raise FeddrmError(
                f"cannot write into {place} ({error.strerror}): give it to the user of the site"
            ) from error
    private = [folder / KEY, folder / "secret", *folder.glob("runs/*/*")]
    private += [path for name in (PRIVATE, PRIVATE_HEAD) for path in folder.glob(f"{CLIENTS_FOLDER}/*/{name}")]
    open_files = [path for path in private if path.is_file() and path.stat().st_mode & 0o077]
    if open_files:
        names = short_list([str(path.relative_to(folder)) for path in open_files], 3)
        yield Finding("folder", PROBLEM, f"others can read {names}: chmod 600")
    else:
        yield Finding("folder", OK, "writable; only its owner can read the private part and the keys")


def _key(folder: Path) -> Iterator[Finding]:
    if not (folder / KEY).exists():
        raise FeddrmError(f"there is no {KEY}: make it with 'feddrm deploy keygen {folder}'")
    public = load_private_key(folder / KEY).public_key()
    stored = folder / "node.pub"
    if stored.exists() and load_public_key(stored) != public:
        raise FeddrmError(f"{stored} is not the public half of {KEY}: write it anew with 'ssh-keygen -y -f {KEY}'")
    yield Finding("key", OK, f"{fingerprint(public)}: the server must have the same one as keys/NAME.pub")
    yield Finding("server's key", OK, f"{fingerprint(load_public_key(folder / SERVER_KEY))}: as keys/server.pub there")


def _certificate(folder: Path) -> Iterator[Finding]:
    certificate = read_certificate(folder / "ca.crt")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    dates = f"ca.crt is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    if now < begin:
        yield Finding("clock", PROBLEM, f"it says {now:%Y-%m-%d %H:%M} UTC, before {dates}: set this machine's clock")
    elif now > end:
        yield Finding("certificate", PROBLEM, f"{dates}: it has expired, ask the coordinator for a new one")
    else:
        soon = (end - now).days < SOON_DAYS
        yield Finding("certificate", WARNING if soon else OK, dates)


def _server(folder: Path, settings: SiteSettings) -> Iterator[Finding]:
    """Whether the server can be reached, what its certificate says, and how far the clocks differ."""
    host, _, port = settings.server.rpartition(":")
    scheme = "http" if settings.insecure else "https"
    try:
        if settings.insecure:
            connection = HTTPConnection(host, int(port), timeout=SERVER_SECONDS)
        else:
            context = ssl.create_default_context(cafile=folder / "ca.crt")
            connection = HTTPSConnection(host, int(port), timeout=SERVER_SECONDS, context=context)
        connection.request("GET", "/health")
        peer = connection.sock
        certificate = peer.getpeercert() if isinstance(peer, ssl.SSLSocket) else None
        date = connection.getresponse().headers["Date"]
        connection.close()
    except (OSError, HTTPException, ValueError) as error:
        reason = explain(error, f"{scheme}://{settings.server}")
        yield Finding("server", WARNING, f"{settings.server} cannot be asked now: {reason}")
        return
    until = f", its certificate is valid to {certificate['notAfter']}" if certificate else ""
    yield Finding("server", OK, f"{settings.server} answers{until}")
    difference = time.time() - parsedate_to_datetime(date).timestamp()
    text = f"{abs(difference):.0f} s {'ahead of' if difference > 0 else 'behind'} the server's"
    if difference > AHEAD_SECONDS or difference < -BEHIND_SECONDS:
        yield Finding("clock", PROBLEM, f"{text}: set both by NTP, or the server refuses this site")
    else:
        yield Finding("clock", OK, text)
