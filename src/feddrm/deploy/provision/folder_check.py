"""What ``feddrm deploy check`` looks at in a site's folder and in the server's: one finding each, with its remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from feddrm._version import __version__
from feddrm.checks.findings import OK, PROBLEM, WARNING, Finding, require_writable
from feddrm.checks.ports import LOOPBACK
from feddrm.deploy.provision import wheel
from feddrm.errors import short_list

FLOWER = "1.41."  # deploy.flower builds on this version


def check_folder(folder: Path, places: Iterable[Path], private: Iterable[Path]) -> Iterator[Finding]:
    """Whether these places can be written, and only their owner can read the private files."""
    for place in (folder, *places):
        if place.exists():
            require_writable(place)
    open_files = [path for path in private if path.is_file() and path.stat().st_mode & 0o077]
    if open_files:
        names = short_list([str(path.relative_to(folder)) for path in open_files], 3)
        yield Finding("folder", PROBLEM, f"others can read {names}: chmod 600")
    else:
        yield Finding("folder", OK, "writable; only its owner can read the private part and the keys")


def check_versions(folder: Path) -> Iterator[Finding]:
    """The installed versions, and whether feddrm is that of the wheel in the folder."""
    flower = version("flwr")
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"feddrm {__version__}, flwr {flower}, torch {version('torch')}, Python {python}"
    others = [path.name for path in folder.glob("feddrm-*.whl") if path.name != wheel.NAME]
    if not flower.startswith(FLOWER):
        yield Finding("versions", PROBLEM, f"{text}: feddrm needs flwr {FLOWER}*: pip install 'feddrm[deploy]'")
    elif others and not (folder / wheel.NAME).exists():
        yield Finding("versions", WARNING, f"{text}: the folder has {others[0]}: all sites need the same, install one")
    else:
        yield Finding("versions", OK, text)


def proxy_of(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for an address, None without one. Flower's HTTP client uses it."""
    proxies = getproxies()
    return None if proxy_bypass(host) else proxies.get(scheme) or proxies.get("all")


def check_loopback() -> Iterator[Finding]:
    """Whether calls between the processes of this machine would go through a proxy."""
    for scheme in ("http", "https"):
        if proxy := proxy_of(scheme, LOOPBACK):
            yield Finding("proxy", PROBLEM, f"calls of {LOOPBACK} would go through {proxy}: add {LOOPBACK} to NO_PROXY")
            return
