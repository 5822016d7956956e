"""Callers and API keys: a file holds the SHA-256 of each random key and the scopes that the key opens."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import changing, write_atomically
from feddrm.io.text import read_text, read_yaml, yaml_bytes
from feddrm.registry import nearest

log = logging.getLogger("feddrm.serve")
SCOPES = ("route", "predict", "outcomes", "metrics", "admin")
REMEDY = "make it with 'feddrm serve-key'"
LONGEST_NAME = 128
TOKEN_PREFIX = "oidc:"  # of the names of tokens' owners, which differ so from those of keys


@dataclass(frozen=True)
class Caller:
    """The owner of a key or a token: its name and its scopes.

    The name goes into logs, tables and error messages, so it is one printable line. It is checked here alone.
    """

    name: str
    scopes: frozenset[str]

    def __post_init__(self) -> None:
        own, shown = self.name.removeprefix(TOKEN_PREFIX), f"{self.name[:64]!a}"
        if not own:
            raise SettingError(f"a caller's name is {shown}: give it at least one letter")
        if not own.isprintable():
            raise SettingError(f"a caller's name is {shown}, which cannot be printed on one line: choose another name")
        if len(own) > LONGEST_NAME:
            raise SettingError(f"a caller's name is {shown}...: give at most {LONGEST_NAME} letters")

    def may(self, scope: str) -> bool:
        """Whether the scope is open to the caller. ``admin`` opens the metrics, too."""
        return scope in self.scopes or (scope == "metrics" and "admin" in self.scopes)


class TokenRefused(FeddrmError):
    """Why a token is not accepted. The text has nothing of what would be."""


class IssuerDown(FeddrmError):
    """No key of the tokens' issuer could be read so far."""


class ApiKeys:
    """Callers by the digest of their key, from a file of ``name: {sha256: ..., scopes: [...]}``.

    A key has 256 random bits, so one round of SHA-256 is enough to make it unguessable. A change of the file is read
    before the next key is looked up. If the file cannot be read, the keys read before stay valid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_state = file_state(path)
        self._callers = _read_callers(path)

    def find(self, key: str) -> Caller | None:
        if (state := file_state(self.path)) != self._file_state:
            self._file_state = state
            try:
                self._callers = _read_callers(self.path)
                log.info("keys read again", extra={"fields": {"keys": len(self._callers)}})
            except FeddrmError as error:
                log.error("the old keys stay", extra={"fields": {"reason": str(error)}})
        return self._callers.get(key_digest(key))


def file_state(path: Path) -> tuple[int, ...]:
    """What differs after a change of the file; empty without a file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def key_digest(key: str) -> str:
    """The SHA-256 of a key, as the file holds it."""
    return hashlib.sha256(key.encode()).hexdigest()


def sendable_key(key: str, place: str) -> str:
    """A key or token as a header takes it. Files and secrets often end with a line break. The key is never shown."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise FeddrmError(f"the key in {place} has a line break, or a letter that no key has: copy it again")
    return key


def add_key(path: Path, name: str, scopes: Sequence[str]) -> str:
    """Add a new key to the file and return it. The file is created if needed; only its owner can read it."""
    chosen, key = sorted(_key_owner(name, scopes).scopes), secrets.token_urlsafe(32)
    with changing(path.parent):
        entries = _read_entries(path) if path.exists() else {}
        if name in {str(known) for known in entries}:
            raise FeddrmError(f"{path} has a key '{name}' already: choose another name, or remove its lines")
        entries[name] = {"sha256": key_digest(key), "scopes": chosen}
        write_atomically(path, yaml_bytes(entries), private=True)
    return key


def _read_entries(path: Path) -> dict[str, Any]:
    """The entries of a file; none of an empty one, because removing the lines of the last key must revoke it, too."""
    lines = map(str.strip, read_text(path, REMEDY).splitlines())
    return read_yaml(path, REMEDY) if any(line and not line.startswith("#") for line in lines) else {}


def _read_callers(path: Path) -> dict[str, Caller]:
    callers: dict[str, Caller] = {}
    for name, value in _read_entries(path).items():
        digest, scopes = (value.get("sha256"), value.get("scopes")) if isinstance(value, dict) else (None, None)
        if not isinstance(digest, str) or len(digest) != 64 or not isinstance(scopes, list):
            raise FeddrmError(f"{path}: key {str(name)[:64]!a} needs sha256 and scopes: {REMEDY}")
        try:
            callers[digest.lower()] = _key_owner(str(name), scopes)
        except SettingError as error:
            raise FeddrmError(f"{path}: {error}") from error
    return callers


def _key_owner(name: str, scopes: Sequence[object]) -> Caller:
    if name.startswith(TOKEN_PREFIX):
        raise SettingError(f"the key's name {name[:64]!a} begins as those of tokens do: choose another name")
    return Caller(name, _check_scopes(scopes))


def _check_scopes(given: Sequence[object]) -> frozenset[str]:
    for scope in given:
        if scope not in SCOPES:
            raise SettingError(f"unknown scope '{scope}'{nearest(str(scope), SCOPES)} (there are: {', '.join(SCOPES)})")
    if not given:
        raise SettingError(f"a key without scopes opens nothing: give some of {', '.join(SCOPES)}")
    return frozenset(str(scope) for scope in given)
