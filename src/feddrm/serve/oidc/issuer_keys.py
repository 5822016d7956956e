"""The public keys of an issuer of tokens (JWKS), from a URL, a file, or where the issuer itself says they are.

Keys that were read once stay until others are read: an issuer that is down locks nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import httpx
import jwt
import orjson

from feddrm.errors import FeddrmError
from feddrm.io.connection_errors import explain
from feddrm.serve.auth import file_state
from feddrm.serve.settings import is_safe_url

log = logging.getLogger("feddrm.serve")
ALGORITHMS = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}  # by type of key; no secret that is shared
LONGEST = 2**20  # bytes of a JWKS
TIMEOUT = 5.0  # for a whole answer
REMEDY = "give a JWKS with public RSA, EC or OKP keys that have a kid"
DISCOVERY = "/.well-known/openid-configuration"  # OpenID Connect Discovery 1.0
UNDISCOVERED = "check --oidc-issuer, or give the keys' place by --oidc-jwks"


class IssuerKey(NamedTuple):
    """A public key, and the beginnings of the names of algorithms that may use it."""

    key: Any
    algorithms: tuple[str, ...]


class IssuerKeys:
    """Keys by their id. ``on_state`` is told whether the last attempt to read them succeeded.

    A URL is read again every ``refresh_seconds``, while requests go on with the keys that are there. For an unknown id
    it is read at once, but at most every ``retry_seconds``, because anybody can send one. A file is read when it has
    changed. With ``issuer`` in the place of a URL or a file, the issuer is asked for the URL before every reading.
    """

    def __init__(
        self,
        place: str | None,
        refresh_seconds: float,
        retry_seconds: float,
        on_state: Callable[[bool], None] | None = None,
        issuer: str = "",
    ) -> None:
        self.place, self.refresh_seconds, self.retry_seconds = place or "", refresh_seconds, retry_seconds
        self.issuer = issuer
        self.is_url = place is None or "://" in place
        self.trouble = ""
        self._on_state = on_state or (lambda _: None)
        self._keys: dict[str, IssuerKey] = {}
        self._tried, self._due = float("-inf"), float("-inf")
        self._reading: asyncio.Task[None] | None = None
        if not self.is_url:  # a file that cannot be read is an error at start
            self._file_state = file_state(Path(self.place))
            self._take(self._load())

    def __len__(self) -> int:
        return len(self._keys)

    async def find(self, kid: str) -> IssuerKey | None:
        """The key with this id; None if the issuer has none."""
        if not self.is_url:
            self._read_changed_file()
        elif kid not in self._keys:
            running = self._reading is not None and not self._reading.done()
            if running or monotonic() - self._tried >= self.retry_seconds:
                await self.refresh()
        elif monotonic() >= self._due:
            self._start()
        return self._keys.get(kid)

    async def refresh(self) -> None:
        """Read the URL now, once for all who wait for it."""
        if self.is_url:
            await asyncio.shield(self._start())

    def _start(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._tried = monotonic()
            self._due = self._tried + self.retry_seconds
            self._reading = asyncio.create_task(self._read_url())
        return self._reading

    async def _read_url(self) -> None:
        try:
            self._take(await asyncio.to_thread(self._load))
            self._due = monotonic() + self.refresh_seconds
        except FeddrmError as error:
            self._fail(error)

    def _read_changed_file(self) -> None:
        if (state := file_state(Path(self.place))) != self._file_state:
            self._file_state = state
            try:
                self._take(self._load())
            except FeddrmError as error:
                self._fail(error)

    def _take(self, keys: dict[str, IssuerKey]) -> None:
        self._keys = keys
        self._on_state(True)
        if self.trouble:
            log.info("the issuer's keys are read again", extra={"fields": {"keys": len(keys)}})
        self.trouble = ""

    def _fail(self, error: FeddrmError) -> None:
        self._on_state(False)
        if not self.trouble:
            text = "the old keys of the issuer stay" if self._keys else "the issuer's keys cannot be read"
            log.error(text, extra={"fields": {"reason": str(error)}})
        self.trouble = str(error)

    def _load(self) -> dict[str, IssuerKey]:
        if not self.is_url:
            return parse_keys(self._read_file(), self.place)
        place = self.place or discover(self.issuer)
        return parse_keys(download(place, "check --oidc-jwks"), place)

    def _read_file(self) -> bytes:
        try:
            return Path(self.place).read_bytes()
        except OSError as error:
            raise FeddrmError(f"cannot read {self.place} ({error.strerror}): {REMEDY}") from error


def discover(issuer: str) -> str:
    """The URL of an issuer's keys, by its own account."""
    place = issuer.rstrip("/") + DISCOVERY
    try:
        stated = orjson.loads(download(place, UNDISCOVERED))
        named, keys = stated["issuer"], stated["jwks_uri"]
    except (ValueError, KeyError, TypeError) as error:
        raise FeddrmError(f"{place} names no issuer and jwks_uri: {UNDISCOVERED}") from error
    if named != issuer:  # otherwise one issuer could speak for another
        raise FeddrmError(f"{place} is of the issuer '{str(named)[:200]}', not of '{issuer}': {UNDISCOVERED}")
    if not isinstance(keys, str) or not is_safe_url(keys):
        raise FeddrmError(f"{place} names keys at '{str(keys)[:200]}', which is no https:// URL: {UNDISCOVERED}")
    return keys


def download(place: str, remedy: str) -> bytes:
    """What a URL answers within ``TIMEOUT``; redirects are not followed. For a thread without an event loop."""
    return asyncio.run(_download(place, remedy))  # httpx without one has no limit for a whole answer


async def _download(place: str, remedy: str) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT), httpx.AsyncClient() as client, client.stream("GET", place) as response:
            if response.status_code != 200:
                raise FeddrmError(f"{place} answers {response.status_code}: {remedy}")
            async for part in response.aiter_bytes():
                body += part
                if len(body) > LONGEST:
                    raise FeddrmError(f"{place} sends more than {LONGEST} bytes: {remedy}")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise FeddrmError(f"cannot reach {place}: {explain(error, place)}") from error
    return bytes(body)


def parse_keys(content: bytes, place: str) -> dict[str, IssuerKey]:
    """The public keys for signatures in a JWKS, by id; keys of other kinds are passed over."""
    try:
        listed = orjson.loads(content)["keys"]
        entries = [entry for entry in listed if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError) as error:
        raise FeddrmError(f"{place} is no JWKS: {REMEDY}") from error
    keys: dict[str, IssuerKey] = {}
    for entry in entries:
        kid, kind = entry.get("kid"), entry.get("kty")
        if not isinstance(kid, str) or not isinstance(kind, str) or kind not in ALGORITHMS:
            continue
        if entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        with contextlib.suppress(jwt.PyJWTError):  # an unknown curve or algorithm
            named = entry.get("alg")
            keys[kid] = IssuerKey(jwt.PyJWK(entry).key, (str(named),) if named else ALGORITHMS[kind])
    if not keys:
        raise FeddrmError(f"{place} has no key that can be used: {REMEDY}")
    return keys
