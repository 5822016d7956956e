"""The clients' predictors: address, health and circuit breaker of each, and one HTTP client per predictor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import ValidationError

from feddrm.errors import FeddrmError
from feddrm.io.connection_errors import explain
from feddrm.io.text import read_text, read_yaml
from feddrm.serve.auth import sendable_key
from feddrm.serve.settings import GatewaySettings, UpstreamEntry, first_problem

log = logging.getLogger("feddrm.serve")
LONGEST_COOL_DOWN = 60.0
HEALTH_CHECK = "health check"  # begins a reason
OTHER_CLASSES, OTHER_FIT = "has other classes", "has a head of another fit"
REMEDIES = {
    OTHER_CLASSES: "than the gateway: serve it from the gateway's run",
    OTHER_FIT: "than the gateway's router: start 'serve-client' again on a folder with this router",
}
UNREGISTERED, LEFT_OUT, TIME_OUT = "not registered", "left out by the caller", "time-out"


class UpstreamFailure(Exception):
    """A predictor gave no usable answer. The text says why, without anything that the predictor sent."""


class Declined(Exception):
    """A predictor works, but does not take what it was sent."""


@dataclass(eq=False)
class Upstream:
    """One client's predictor, with a circuit breaker.

    After ``failure_limit`` failures in a row the circuit opens: the predictor is not asked until the cool-down is
    over. Then one real request is sent as a trial; if it fails, the next cool-down is twice as long. A health check
    never closes a circuit, because a predictor may be healthy and still too slow.

    ``classes`` are the gateway's class names; empty if the gateway knows none. ``fit`` names the fit of its router.
    A predictor that ``stated`` other classes, or a head of another fit, is ``foreign``: its answers would be read under
    wrong names, or mixed with those of other heads.
    """

    name: str
    entry: UpstreamEntry
    failure_limit: int
    cool_down: float
    http: httpx.AsyncClient
    classes: tuple[str, ...] = ()
    fit: str | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)  # in the latest health check
    healthy: bool | None = None
    failures: int = 0
    in_flight: int = 0
    asked: int = 0
    answered: int = 0
    seconds: float = 0.0  # that the latest answer took
    reason: str = ""
    _opened: float | None = None
    _pause: float = field(default=0.0)
    _away: bool = False

    @property
    def foreign(self) -> str:
        """What the predictor states otherwise than the gateway; '' if nothing, as far as it states something."""
        if self.classes and self.stated.get("classes") not in (None, list(self.classes)):
            return OTHER_CLASSES
        return OTHER_FIT if self.stated.get("fit") not in (None, self.fit) else ""

    @property
    def circuit(self) -> str:
        if self._opened is None:
            return "closed"
        return "open" if time.monotonic() - self._opened < self._pause else "trying"

    @property
    def unavailable_because(self) -> str | None:
        """Why the predictor cannot be asked now; None if it can."""
        if self.foreign:
            return self.foreign
        if self.healthy is False:
            return "unhealthy"
        if self.circuit == "open" or (self.circuit == "trying" and self.in_flight > 0):
            return "circuit open"
        if self.in_flight >= self.entry.capacity:
            return "at capacity"
        return None

    @property
    def available(self) -> bool:
        return self.unavailable_because is None

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A context for one request: counts it, and opens or closes the circuit by whether the block raises."""
        self.in_flight += 1
        self.asked += 1
        started = time.monotonic()
        try:
            yield
        except (asyncio.CancelledError, Declined):
            raise  # the caller left, or sent what does not fit: the predictor is not at fault
        except Exception as error:
            self._failed(TIME_OUT if isinstance(error, TimeoutError) else str(error) or type(error).__name__, started)
            raise
        else:
            self.answered += 1
            self.failures, self._opened, self._pause, self.reason = 0, None, 0.0, ""
            self.seconds = time.monotonic() - started
            self.healthy = True
            self._log_change()
        finally:
            self.in_flight -= 1

    def _failed(self, reason: str, started: float) -> None:
        self.failures += 1
        self.reason = reason
        if self._opened is not None and started <= self._opened:
            return  # it started before the circuit opened, so it is no trial, and the pause covers it already
        if self._opened is not None or self.failures >= self.failure_limit:
            self._pause = min(LONGEST_COOL_DOWN, 2 * self._pause) if self._pause else self.cool_down
            self._opened = time.monotonic()
            self._log_change()

    def _log_change(self) -> None:
        """Log once that the predictor is away, and once that it is back. At capacity it is neither: that is brief."""
        away = bool(self.foreign) or self.healthy is False or self._opened is not None
        if away != self._away:
            self._away = away
            fields = {"client": self.name} | ({"reason": self.reason} if away else {})
            log.warning("a client is away" if away else "a client is back", extra={"fields": fields})

    async def send(self, method: str, path: str, limit: int, **options: Any) -> tuple[int, bytes]:
        """Status and body of a response of at most ``limit`` bytes, within the predictor's time-out.

        The body is not decompressed, to avoid decompression bombs.
        """
        body = bytearray()
        async with asyncio.timeout(self.entry.timeout), self.http.stream(method, path, **options) as response:
            async for part in response.aiter_raw():
                body += part
                if len(body) > limit:
                    raise UpstreamFailure("answered too much")
        return response.status_code, bytes(body)

    async def check(self) -> None:
        """Check the predictor's health, its class names and the fit of its head."""
        try:
            status, body = await self.send("GET", "/v2/health/ready", 2**16 + 1024 * len(self.classes))
            self.healthy = status == 200
            if self.healthy:
                self._compare(body)
            else:
                self.reason = f"{HEALTH_CHECK} says {status}"
        except Exception as error:  # whatever it is, the checks of the others must go on
            reason = await asyncio.to_thread(explain, error, self.entry.url)
            self.healthy, self.reason = False, f"{HEALTH_CHECK} failed ({reason})"
        self._log_change()

    def _compare(self, body: bytes) -> None:
        """Compare what is stated with ours. Without class names only the labels of answers are compared."""
        self.stated = {}
        with contextlib.suppress(ValueError, TypeError):
            self.stated = dict(orjson.loads(body))
        if self.foreign:
            self.reason = f"{self.foreign} {REMEDIES[self.foreign]}"
        elif self.reason.startswith((HEALTH_CHECK, *REMEDIES)):  # it is back; why an answer failed stays
            self.reason = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "client": self.name,
            "healthy": self.healthy and not self.foreign,
            "circuit": self.circuit,
            "available": self.available,
            "in_flight": self.in_flight,
            "capacity": self.entry.capacity,
            "asked": self.asked,
            "answered": self.answered,
            "milliseconds": round(1e3 * self.seconds, 2),
            "reason": self.reason,
        }


class Upstreams(dict[str, Upstream]):
    """All predictors by client name."""

    @classmethod
    def read(cls, path: Path | None, settings: GatewaySettings, classes: tuple[str, ...] = ()) -> Upstreams:
        """From ``clients.yaml``: ``name: {url: ..., key_env: ..., capacity: ..., timeout: ...}``.

        ``classes`` are the class names of the gateway, where they are known.
        """
        if path is None:
            return cls()
        values = read_yaml(path, "write 'name: {url: http://...}' for each client")
        if not values:
            raise FeddrmError(f"{path} lists no clients: write 'name: {{url: http://...}}' for each")
        upstreams = cls()
        for name, value in values.items():
            entry = _entry(path, str(name), value)
            upstreams[str(name)] = Upstream(
                str(name), entry, settings.failures, settings.cool_down_seconds, _http(str(name), entry), classes
            )
        return upstreams

    def away(self, names: Sequence[str], without: Collection[str] = (), fit: str | None = None) -> dict[int, str]:
        """The clients that cannot be asked now, by number, and why; those that the caller leaves out among them.

        ``fit`` is that of the router that asks. Without a list of clients all others are taken as available.
        """
        reasons = {}
        for number, name in enumerate(names):
            upstream = self.get(name)
            if name in without:
                reasons[number] = LEFT_OUT
            elif upstream is not None:
                other_fit = OTHER_FIT if upstream.stated.get("fit") not in (None, fit or upstream.fit) else None
                if (reason := upstream.unavailable_because or other_fit) is not None:
                    reasons[number] = reason
            elif self:
                reasons[number] = UNREGISTERED
        return reasons

    async def watch(self, seconds: float) -> None:
        """Check the health of all predictors this often until cancelled; a slow one delays only its own checks."""

        async def follow(upstream: Upstream) -> None:
            while True:
                await upstream.check()
                await asyncio.sleep(seconds)

        await asyncio.gather(*map(follow, self.values()))

    async def close(self) -> None:
        for upstream in self.values():
            await upstream.http.aclose()


@lru_cache
def _tls(ca: Path | None) -> ssl.SSLContext:
    """Whom to trust; to read all authorities of this machine again for each of many clients would take long."""
    return ssl.create_default_context(cafile=ca)


def _entry(path: Path, name: str, value: object) -> UpstreamEntry:
    """One client of the list; files that it names are relative to the list."""
    try:
        entry = UpstreamEntry.model_validate(value)
    except ValidationError as error:
        problem = first_problem(error.errors(), UpstreamEntry.model_fields, secret=True)
        raise FeddrmError(f"{path}: client '{name}': {problem}") from error
    files = {"ca": entry.ca, "key_file": entry.key_file}
    return entry.model_copy(update={key: path.parent / file for key, file in files.items() if file is not None})


def _http(name: str, entry: UpstreamEntry) -> httpx.AsyncClient:
    key = ""
    if entry.key_env is not None:
        key = sendable_key(os.environ.get(entry.key_env, ""), entry.key_env)
        if not key:
            raise FeddrmError(f"client '{name}': {entry.key_env} is not set: export the client's API key there")
    elif entry.key_file is not None:
        text = read_text(entry.key_file, f"give the key_file of client '{name}'")
        key = sendable_key(text, str(entry.key_file))
    try:
        return httpx.AsyncClient(
            base_url=entry.url,
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=None,  # httpx limits single steps; Upstream.send limits the whole request
            verify=_tls(entry.ca) if entry.url.startswith("https") else False,  # without TLS there is nothing to verify
            limits=httpx.Limits(max_connections=entry.capacity, max_keepalive_connections=entry.capacity),
            trust_env=False,
        )
    except (OSError, httpx.InvalidURL, ValueError) as error:  # ssl's own errors are OSErrors
        raise FeddrmError(f"client '{name}': {error}: check its url, ca and key") from error
