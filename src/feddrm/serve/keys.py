"""API keys: random words of which only the SHA-256 is kept, each with the scopes it opens."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from feddrm.errors import FeddrmError, SettingError
from feddrm.files import write_atomically
from feddrm.registry import nearest

SCOPES = ("route", "predict", "admin")


@dataclass(frozen=True)
class Caller:
    """Who is asking: the key's name and what it may do."""

    name: str
    scopes: frozenset[str]


ANYBODY = Caller("anybody", frozenset(SCOPES))


class Keys:
    """Callers by the digest of their key. A key has 256 random bits, so one round of SHA-256 cannot be guessed."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = dict(callers)

    @classmethod
    def read(cls, path: Path) -> Keys:
        """From a file of ``name: {sha256: ..., scopes: [...]}``."""
        found: dict[str, Caller] = {}
        for name, value in _load(path).items():
            digest, scopes = (value.get("sha256"), value.get("scopes")) if isinstance(value, dict) else (None, None)
            if not isinstance(digest, str) or len(digest) != 64 or not isinstance(scopes, list):
                raise FeddrmError(f"{path}: key '{name}' needs sha256 and scopes: make it with 'feddrm serve-key'")
            found[digest.lower()] = Caller(str(name), _scopes(scopes))
        return cls(found)

    def find(self, key: str) -> Caller | None:
        return self._callers.get(digest(key))


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
