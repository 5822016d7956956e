"""What ``feddrm deploy check`` finds at a site: data, floors, folder, keys, certificate, way to the server, clock."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import torch
from torch import Tensor

from feddrm.checks.findings import OK, WARNING, Finding, check_disk, clock_finding, collect
from feddrm.data import Client
from feddrm.data.sources.labelled_samples import SPELLING_REMEDY, spelling_variants
from feddrm.deploy.provision.folder_check import check_folder, check_loopback, check_versions, proxy_of
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.site import KEY, SERVER_KEY
from feddrm.deploy.site.site_dataset import SiteDataset, read_site_dataset
from feddrm.deploy.site.site_settings import SiteSettings
from feddrm.deploy.tls_files import AUTHORITY, site_certificate
from feddrm.deploy.wire.key_files import fingerprint, load_private_key, load_public_key
from feddrm.errors import FeddrmError, short_list
from feddrm.io.connection_errors import explain
from feddrm.io.run_files import CLIENTS_FOLDER, FACTS, PRIVATE, PRIVATE_HEAD
from feddrm.io.text import read_json
from feddrm.router.settings import Holdout

FEW = 20  # training samples below which sums tell much of single samples
SERVER_SECONDS = 5.0
FOLDS = Holdout.suggested(0).parts  # of a router's fit with few samples


def check_site(folder: Path) -> list[Finding]:
    """Check everything; one finding that is a problem does not end the rest."""
    settings = SiteSettings.read(folder)
    places = [folder / "runs", folder / CLIENTS_FOLDER]
    steps: dict[str, Callable[[], Iterable[Finding]]] = {
        "data": lambda: _data(read_site_dataset(settings.name, settings.data, folder), folder, settings.floors),
        "folder": lambda: check_folder(folder, places, _private_files(folder)),
        "disk": lambda: check_disk(folder),
        "versions": lambda: check_versions(folder),
        "key": lambda: _key(folder, settings.name),
        "certificate": lambda: () if settings.insecure else [site_certificate(folder)],
        "proxy": check_loopback,
        "server": lambda: _server(folder, settings),
    }
    return collect(steps)


def _data(dataset: SiteDataset, folder: Path, floors: Floors) -> Iterator[Finding]:
    client = dataset.client(dataset.classes)
    train, test = client.train, client.test
    shape = " x ".join(map(str, train.x.shape[1:]))
    few = f": sums over so few can tell something about single ones, {FEW} or more are better"
    text = f"{len(train)} training and {len(test)} test samples of {shape} {str(train.x.dtype).removeprefix('torch.')}"
    if train.subject is not None:
        text += f", of {train.subjects} and {test.subjects} subjects"
    yield Finding("samples", WARNING if train.subjects < FEW else OK, text + (few if train.subjects < FEW else ""))
    counts = torch.bincount(torch.cat([train.y, test.y]), minlength=len(dataset.classes)).tolist()
    shown = short_list([f"{name} ({count})" for name, count in zip(dataset.classes, counts, strict=True)])
    yield Finding("classes", OK if len(dataset.classes) > 1 else WARNING, f"{len(dataset.classes)}: {shown}")
    if (pair := spelling_variants(dataset.classes)) is not None:
        yield Finding("spelling", WARNING, f"the classes '{pair[0]}' and '{pair[1]}' {SPELLING_REMEDY}")
    if dataset.columns is not None:
        yield Finding("columns", OK, f"{len(dataset.columns)}: {short_list(_columns(dataset, [train.x, test.x]))}")
        if (pair := spelling_variants(dataset.columns)) is not None:
            yield Finding("spelling", WARNING, f"the columns '{pair[0]}' and '{pair[1]}' {SPELLING_REMEDY}")
    yield from (Finding("samples", WARNING, warning) for warning in dataset.warnings())
    yield from _form(dataset, client, folder)
    yield from _floors(dataset, client, floors)


def _form(dataset: SiteDataset, client: Client, folder: Path) -> Iterator[Finding]:
    """Whether the data have the form that all sites agreed on in the last run that was finished here."""
    if not (folder / FACTS).exists():
        return
    agreed = read_json(folder / FACTS, "remove it: the next run sends it again")
    shape = list(client.train.x.shape[1:])
    more = [label for label in dataset.classes if label not in agreed["classes"]]
    if dataset.table is None and shape != agreed["sample_shape"]:
        text = f"samples of shape {shape}, the last run agreed on {agreed['sample_shape']}: bring all sites to one form"
        yield Finding("form", WARNING, text)
    elif more:
        yield Finding("form", WARNING, f"class '{more[0]}' is not one of the last run: the next needs another name")
    else:
        yield Finding("form", OK, "shape and classes are those of the last run")


def _floors(dataset: SiteDataset, client: Client, floors: Floors) -> Iterator[Finding]:
    if not floors.is_set:
        return
    floors.check_client(client, tested=True)
    if dataset.sums is not None and dataset.table is not None:
        floors.check_columns(dataset.sums, dataset.table.rows, dataset.counted)
    counted = "" if client.train.subject is None else " (a subject counts once)"
    text = f"at least {floors.per_class} samples of a class and {floors.per_sum} of a sum{counted}; no metrics are sent"
    smallest = client.train.subjects // FOLDS
    if smallest < floors.per_sum:
        text += f". A fold of a router's fit may have {smallest}: its messages will be refused"
    yield Finding("floors", WARNING if smallest < floors.per_sum else OK, text)


def _columns(dataset: SiteDataset, parts: Sequence[Tensor]) -> list[str]:
    """Every column with its range; with ``schema: auto`` with what the site will tell of it."""
    if dataset.sums is not None:
        return [f"{name} ({column})" for name, column in dataset.sums.items()]
    rows = torch.cat(list(parts))
    ranges = zip(dataset.columns or (), rows.min(0).values.tolist(), rows.max(0).values.tolist(), strict=True)
    return [f"{name} ({low:g} to {high:g})" for name, low, high in ranges]


def _private_files(folder: Path) -> list[Path]:
    kept = [path for name in (PRIVATE, PRIVATE_HEAD) for path in folder.glob(f"{CLIENTS_FOLDER}/*/{name}")]
    return [folder / KEY, folder / "secret", *folder.glob("runs/*/*"), *kept]


def _key(folder: Path, name: str) -> Iterator[Finding]:
    if not (folder / KEY).exists():
        raise FeddrmError(f"there is no {KEY}: make it with 'feddrm deploy keygen {folder}'")
    public = load_private_key(folder / KEY).public_key()
    stored = folder / "node.pub"
    if stored.exists() and load_public_key(stored) != public:
        raise FeddrmError(f"{stored} is not the public half of {KEY}: write it anew with 'ssh-keygen -y -f {KEY}'")
    yield Finding("key", OK, f"{fingerprint(public)}: the server must have the same one as keys/{name}.pub")
    yield Finding("server's key", OK, f"{fingerprint(load_public_key(folder / SERVER_KEY))}: as keys/server.pub there")


def _server(folder: Path, settings: SiteSettings) -> Iterator[Finding]:
    """Whether the server can be reached as Flower reaches it, what its certificate says, how far the clocks differ.

    Both Flower's client and this check use the proxy that the environment names. The clock is compared with the
    ``Date`` of the server's answer, which comes through TLS.
    """
    scheme = "http" if settings.insecure else "https"
    url = f"{scheme}://{settings.server}/health"
    proxy = proxy_of(scheme, settings.server.rpartition(":")[0])
    way = f" through the proxy {proxy}" if proxy else ""
    context = True if settings.insecure else ssl.create_default_context(cafile=folder / AUTHORITY)
    try:
        with httpx.Client(verify=context, timeout=SERVER_SECONDS) as client, client.stream("GET", url) as answer:
            peer = answer.extensions["network_stream"].get_extra_info("ssl_object")
            certificate, date = peer.getpeercert() if peer is not None else None, answer.headers["Date"]
    except httpx.ProxyError as error:
        text = f"the proxy {proxy} does not let {settings.server} through ({error}): ask for it, or set NO_PROXY"
        yield Finding("server", WARNING, text)
        return
    except (httpx.HTTPError, httpx.InvalidURL, OSError, KeyError, ValueError) as error:
        yield Finding("server", WARNING, f"{settings.server} cannot be asked now{way}: {explain(error, url)}")
        return
    until = f", its certificate is valid to {certificate['notAfter']}" if certificate else ""
    yield Finding("server", OK, f"{settings.server} answers{way}{until}")
    difference = time.time() - parsedate_to_datetime(date).timestamp()
    yield clock_finding(difference, "the server's", "set both by NTP, or the server refuses this site")
