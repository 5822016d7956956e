"""The clients the gateway may ask: where they are, whether they are well, and when to leave them alone for a while."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import yaml

from feddrm.errors import FeddrmError
from feddrm.serve.settings import ClientEntry, GatewaySettings, entry

log = logging.getLogger("feddrm.serve")
LONGEST_COOL_DOWN = 60.0
FOREIGN = "has other classes"


class NoAnswer(Exception):
    """A client did not give a usable answer; the text says why, without what it sent."""


class Declined(Exception):
    """A client is well, but does not take what it was sent."""


@dataclass(eq=False)
class Upstream:
    """One client's predictor, with a circuit breaker.

    After ``limit`` failures in a row the circuit opens: nobody asks until the cool-down is over. Then
    one real request may try; if it fails, the next cool-down is twice as long. A health check alone
    never closes a circuit: a client may be well and yet too slow.

    ``classes`` are the names that its numbers must stand for; none where the gateway knows none. A client that
    states others is ``foreign``: it belongs to another run, and its answers would be read as what they are not.
    """

    name: str
    entry: ClientEntry
    limit: int
    cool_down: float
    http: httpx.AsyncClient
    classes: tuple[str, ...] = ()
    foreign: bool = False
    healthy: bool | None = None
    failures: int = 0
    in_flight: int = 0
    asked: int = 0
    answered: int = 0
    seconds: float = 0.0  # of the latest answer
    reason: str = ""
    _opened: float | None = None
    _pause: float = field(default=0.0)

    @property
    def circuit(self) -> str:
        if self._opened is None:
            return "closed"
        return "open" if time.monotonic() - self._opened < self._pause else "trying"

    @property
    def why_not(self) -> str | None:
        """Why it cannot be asked now; None if it can."""
        if self.foreign:
            return FOREIGN
        if self.healthy is False:
            return "unhealthy"
        if self.circuit == "open" or (self.circuit == "trying" and self.in_flight > 0):
            return "circuit open"
        if self.in_flight >= self.entry.capacity:
            return "at capacity"
        return None

    @property
    def available(self) -> bool:
        return self.why_not is None

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Around one request: counts it, and judges the circuit by whether it raised."""
        self.in_flight += 1
        self.asked += 1
        began = time.monotonic()
        try:
            yield
        except (asyncio.CancelledError, Declined):
            raise  # the caller went away, or sent what does not fit: says nothing about the client
        except Exception as error:
            self._failed(str(error), began)
            raise
        else:
            self.answered += 1
            self.failures, self._opened, self._pause, self.reason = 0, None, 0.0, ""
            self.seconds = time.monotonic() - began
            self.healthy = True
        finally:
            self.in_flight -= 1

    def _failed(self, reason: str, began: float) -> None:
        self.failures += 1
        self.reason = reason
        if self._opened is not None and began <= self._opened:
            return  # it was under way when the circuit opened: no trial, and the pause counts it already
        if self._opened is not None or self.failures >= self.limit:
            self._pause = min(LONGEST_COOL_DOWN, 2 * self._pause) if self._pause else self.cool_down
            self._opened = time.monotonic()

    async def send(self, method: str, path: str, limit: int, **given: Any) -> tuple[int, bytes]:
        """Status and body of an answer, all of it within the client's time-out and ``limit`` bytes.

        The body as it came: unpacking what nobody asked to be packed would make much of little.
        """
        body = bytearray()
        async with asyncio.timeout(self.entry.timeout), self.http.stream(method, path, **given) as answer:
            async for part in answer.aiter_raw():
                body += part
                if len(body) > limit:
                    raise NoAnswer("answered too much")
        return answer.status_code, bytes(body)

    async def check(self) -> None:
        """Ask for its health, and whether its classes are those it shall answer."""
        try:
            status, body = await self.send("GET", "/v2/health/ready", 2**16 + 1024 * len(self.classes))
            self.healthy = status == 200
            if self.healthy:
                self._compare(body)
            else:
                self.reason = f"health check says {status}"
        except Exception as error:  # whatever it is, the others' health is looked at all the same
            self.healthy, self.reason = False, f"health check failed ({type(error).__name__})"

    def _compare(self, body: bytes) -> None:
        """By the names it states. One that states none is taken: what it answers is compared label by label."""
        stated = None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            stated = orjson.loads(body)["classes"]
        before, self.foreign = self.foreign, bool(self.classes) and stated not in (None, list(self.classes))
        if self.foreign:
            self.reason = f"{FOREIGN} than the gateway: serve it from the gateway's run"
        elif before:
            self.reason = ""
        if self.foreign and not before:
            log.error("a client is left out", extra={"fields": {"client": self.name, "reason": self.reason}})

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


class Registry:
    """All peers by name, and the task that keeps an eye on them."""

    def __init__(
        self, entries: Mapping[str, ClientEntry], settings: GatewaySettings, classes: tuple[str, ...] = ()
    ) -> None:
        self.seconds = settings.health_seconds
        self.peers = {
            name: Upstream(name, given, settings.failures, settings.cool_down_seconds, _http(name, given), classes)
            for name, given in entries.items()
        }

    @classmethod
    def read(cls, path: Path | None, settings: GatewaySettings, classes: tuple[str, ...] = ()) -> Registry:
        """From ``clients.yaml``: ``name: {url: ..., key_env: ..., capacity: ..., timeout: ...}``.

        ``classes`` are the names that all must answer by, where they are known.
        """
        if path is None:
            return cls({}, settings)
        try:
            found = yaml.safe_load(path.read_text())
        except OSError as error:
            raise FeddrmError(f"cannot read {path} ({error.strerror}): give a file of clients") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise FeddrmError(f"{path} is no YAML file: write 'name: {{url: http://...}}' for each client") from error
        if not isinstance(found, dict) or not found:
            raise FeddrmError(f"{path} lists no clients: write 'name: {{url: http://...}}' for each")
        return cls({str(name): entry(path, str(name), value) for name, value in found.items()}, settings, classes)

    def can_answer(self, name: str) -> bool:
        """Whether it can be asked now; without a list of clients everybody is taken to be there."""
        return not self.peers or (name in self.peers and self.peers[name].available)

    def available(self, names: Sequence[str], without: Collection[str] = ()) -> tuple[bool, ...]:
        """Who of them can be asked now and shall be."""
        if not self.peers and not without:
            return (True,) * len(names)
        return tuple(self.can_answer(name) and name not in without for name in names)

    async def watch(self) -> None:
        """Check the health of all, for ever; nobody waits for another's."""

        async def follow(peer: Upstream) -> None:
            while True:
                await peer.check()
                await asyncio.sleep(self.seconds)

        await asyncio.gather(*(follow(peer) for peer in self.peers.values()))

    async def close(self) -> None:
        for peer in self.peers.values():
            await peer.http.aclose()


def _http(name: str, given: ClientEntry) -> httpx.AsyncClient:
    key = None
    if given.key_env is not None:
        key = os.environ.get(given.key_env)
        if not key:
            raise FeddrmError(f"client '{name}': {given.key_env} is not set: export the client's API key there")
    elif given.key_file is not None:
        try:
            key = given.key_file.read_text().strip()
        except OSError as error:
            raise FeddrmError(f"client '{name}': cannot read {given.key_file} ({error.strerror})") from error
    try:
        return httpx.AsyncClient(
            base_url=given.url,
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=None,  # it limits single steps; Upstream.send limits the whole
            verify=ssl.create_default_context(cafile=given.ca) if given.url.startswith("https") else True,
            limits=httpx.Limits(max_connections=given.capacity, max_keepalive_connections=given.capacity),
            trust_env=False,
        )
    except (OSError, httpx.InvalidURL, ValueError) as error:  # ssl's own errors are OSErrors
        raise FeddrmError(f"client '{name}': {error}: check its url, ca and key") from error
