"""API keys: random words of which only the SHA-256 is kept, each with the scopes it opens."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.registry import nearest

log = logging.getLogger("feddrm.serve")
SCOPES = ("route", "predict", "admin")


@dataclass(frozen=True)
class Caller:
    """Who is asking: the key's name and what it may do."""

    name: str
    scopes: frozenset[str]


ANYBODY = Caller("anybody", frozenset(SCOPES))


class Keys:
    """Callers by the digest of their key, from a file of ``name: {sha256: ..., scopes: [...]}``.

    A key has 256 random bits, so one round of SHA-256 cannot be guessed. The file counts as it is now:
    a change is read before the next key is looked up. One that cannot be read leaves the keys before it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._now()
        self._callers = _callers(path)

    def find(self, key: str) -> Caller | None:
        if (stamp := self._now()) != self._stamp:
            self._stamp = stamp
            try:
                self._callers = _callers(self.path)
                log.info("keys read again", extra={"fields": {"keys": len(self._callers)}})
            except FeddrmError as error:
                log.error("the old keys stay", extra={"fields": {"reason": str(error)}})
        return self._callers.get(digest(key))

    def _now(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def digest(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def add_key(path: Path, name: str, scopes: Sequence[str]) -> str:
    """Add a new key to the file (made if need be, readable by its owner only) and return it: it is not kept."""
    known = _load(path) if path.exists() else {}
    if name in known:
        raise FeddrmError(f"{path} has a key '{name}' already: choose another name, or remove its lines")
    chosen = sorted(_scopes(scopes))
    key = secrets.token_urlsafe(32)
    known[name] = {"sha256": digest(key), "scopes": chosen}
    write_atomically(path, yaml.safe_dump(known, sort_keys=False).encode())
    os.chmod(path, 0o600)  # noqa: PTH101
    return key


def _callers(path: Path) -> dict[str, Caller]:
    found: dict[str, Caller] = {}
    for name, value in _load(path).items():
        digest, scopes = (value.get("sha256"), value.get("scopes")) if isinstance(value, dict) else (None, None)
        if not isinstance(digest, str) or len(digest) != 64 or not isinstance(scopes, list):
            raise FeddrmError(f"{path}: key '{name}' needs sha256 and scopes: make it with 'feddrm serve-key'")
        found[digest.lower()] = Caller(str(name), _scopes(scopes))
    return found


def _scopes(given: Sequence[object]) -> frozenset[str]:
    for scope in given:
        if scope not in SCOPES:
            raise SettingError(f"unknown scope '{scope}'{nearest(str(scope), SCOPES)} (there are: {', '.join(SCOPES)})")
    if not given:
        raise SettingError(f"a key without scopes opens nothing: give some of {', '.join(SCOPES)}")
    return frozenset(str(scope) for scope in given)


def _load(path: Path) -> dict[str, object]:
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise FeddrmError(f"cannot read {path} ({error.strerror}): make it with 'feddrm serve-key'") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FeddrmError(f"{path} is no YAML file: make it with 'feddrm serve-key'") from error
    if not isinstance(found, dict):
        raise FeddrmError(f"{path} holds no keys: make it with 'feddrm serve-key'")
    return {str(name): value for name, value in found.items()}
