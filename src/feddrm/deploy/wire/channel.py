"""The server's exchange of messages with all sites: requests by site name, replies verified and checked."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from feddrm.deploy.wire.attendance import Attendance, OnEvent
from feddrm.deploy.wire.messages import ANY_SITE, Message, digest, pack, sign, unpack, verify
from feddrm.errors import FeddrmError
from feddrm.io.text import printable_line

HELLO_SECONDS = 60.0
STALL_SECONDS, TELL_SECONDS = 10.0, 5.0  # when sites are told of a stall; how long that may take
REMOVED_MEMBER = "removed"

SiteKeys = Mapping[str, ec.EllipticCurvePublicKey]
Check = Callable[[str, Message], Message]  # given a site's name and reply: returns the usable part, or raises
Request = tuple[Mapping[str, Any], Mapping[str, Tensor]]  # header and tensors


class Refusal(NamedTuple):
    """Instead of a reply: a node takes no message of this server. Nothing of it is signed.

    ``who`` is the transport's name of the node, ``reason`` the node's text. The bytes of a reply never become one, so
    that no node can speak in the name of another.
    """

    who: str
    reason: str


class Transport(Protocol):
    """What carries the bytes of messages to nodes and back: Flower, or a test's direct call."""

    def nodes(self) -> set[int]:
        """The nodes that can be reached now."""

    def ask(
        self, messages: Mapping[int, bytes], deadline: float, kind: str, on_wait: Callable[[set[int]], None]
    ) -> Mapping[int, bytes | Refusal]:
        """The replies and refusals, by node, that arrived within ``deadline`` seconds.

        ``on_wait`` is called now and then with the nodes whose replies are missing.
        """


class Channel:
    """Signs requests to sites and accepts only replies that the right site signed for the right request.

    ``read_keys`` gives the public key of every member. It is asked again before every exchange, because sites may be
    added and removed while the server runs.
    """

    def __init__(
        self,
        transport: Transport,
        key: ec.EllipticCurvePrivateKey,
        read_keys: Callable[[], SiteKeys],
        on_event: OnEvent,
    ) -> None:
        self.transport, self.key, self.read_keys, self.on_event = transport, key, read_keys, on_event
        self.site_keys = read_keys()
        self.attendance = Attendance(on_event)
        self._told: set[str] = set()  # of whom the sites know that they are waited for
        self.nodes: dict[str, int] = {}  # the node of every site that has answered a hello
        self.foreign: set[int] = set()  # nodes without any of this federation's keys
        # Of the last call of `ask`:
        self.asked: tuple[str, ...] = ()  # the sites that the question was sent to
        self.bytes_sent: dict[str, int] = {}  # by site, of sites with a usable reply
        self.bytes_received: dict[str, int] = {}
        self.refusals: dict[str, str] = {}  # why a site's reply cannot be used
        self.absences: dict[str, str] = {}  # why a site has no usable reply, in words
        self.stamp: Callable[[], Mapping[str, Any]] = dict  # further fields of every request's header

    def ask(self, requests: Mapping[str, Request], deadline: float, check: Check) -> dict[str, Message]:
        """The usable replies by site name. Sites that are away, late, or refused by ``check`` are left out."""
        self.bytes_sent, self.bytes_received, self.refusals, self.absences = {}, {}, {}, {}
        self.discover()  # a site may refuse the hello already
        packed = {
            name: pack({**header, "to": name, **self.stamp()}, tensors)
            for name, (header, tensors) in requests.items()
            if name in self.nodes
        }
        self.asked = tuple(packed)
        names = {self.nodes[name]: name for name in packed}
        if packed:
            self._told = set()  # another message ends what a site shows
        kind = "train" if any(header["kind"] == "train" for header, _ in requests.values()) else "query"
        replies: dict[str, Message] = {}
        seconds: dict[str, float | None] = {}
        content = {node: packed[name] for node, name in names.items()}
        for node, signed in self._exchange(content, deadline, kind, names).items():
            name = names[node]
            reply = self.verified(signed, packed[name], name)
            if reply is not None and (usable := self.checked(name, reply, check)) is not None:
                replies[name], took = usable, reply.header.get("seconds")  # a site's word: it may be anything
                seconds[name] = took if isinstance(took, int | float) and 0 <= took < math.inf else None
                self.bytes_sent[name], self.bytes_received[name] = len(packed[name]), len(signed)
        self._note_attendance(requests)
        self._report({name: header for name, (header, _) in requests.items()}, replies, seconds)
        return replies

    def _report(
        self,
        headers: Mapping[str, Mapping[str, Any]],
        replies: Mapping[str, Message],
        seconds: Mapping[str, float | None],
    ) -> None:
        """Tell who has answered, and why the others have not."""
        silent = [name for name in headers if name in self.nodes and name not in replies and name not in self.refusals]
        reachable = self.transport.nodes() if silent else set()
        for name, header in headers.items():
            about = {"site": name, **{key: header.get(key) for key in ("kind", "step", "round")}}
            if name in replies:
                figures = {"seconds": seconds[name], "loss": replies[name].header.get("loss")}
                sizes = {"bytes_sent": self.bytes_sent[name], "bytes_received": self.bytes_received[name]}
                self.on_event("site answered", {**about, **figures, **sizes})
                continue
            if name in self.refusals:
                self.absences[name] = f"refused: {self.refusals[name]}"
            elif name not in silent:
                self.absences[name] = "not connected" if name in self.site_keys else REMOVED_MEMBER
            else:
                self.absences[name] = "timed out" if self.nodes[name] in reachable else "connection lost"
            self.on_event("site missing", {**about, "reason": self.absences[name]})

    def _note_attendance(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.bytes_sent or name in self.refusals:
                self.attendance.heard_from(name)
            elif name in self.site_keys:
                self.attendance.left_out(name)

    def discover(self) -> dict[str, Message]:
        """Say hello to new nodes and learn which site each one is; returns the hello replies by site name.

        The signature decides which site a node is. What the node says about itself does not count.
        """
        reachable, self.site_keys = self.transport.nodes(), self.read_keys()
        self.nodes = {n: node for n, node in self.nodes.items() if node in reachable and n in self.site_keys}
        self.attendance.forget(self.site_keys)
        self.foreign &= reachable
        new = reachable - set(self.nodes.values()) - self.foreign
        # The nonce makes every hello another message, so a recorded reply does not answer it. Sites ignore it.
        hellos = {node: pack({"kind": "hello", "to": ANY_SITE, "nonce": secrets.token_hex(16)}) for node in new}
        replies: dict[str, Message] = {}
        for node, signed in self._exchange(hellos, HELLO_SECONDS, "query").items():
            if isinstance(signed, Refusal):
                self.on_event("complaint", {"text": printable_line(f"{signed.who}: {signed.reason}")})
                continue  # it gets another hello: somebody may correct it
            name = self._signer(signed)
            if name is None:
                self.foreign.add(node)
                self.on_event("complaint", {"text": f"node {node} has none of this federation's keys: it is ignored"})
            elif (reply := self.verified(signed, hellos[node], name)) is not None:
                replies[name], self.nodes[name] = reply, node
        return replies

    def _signer(self, signed: bytes) -> str | None:
        """The member that has signed a reply; None for a stranger's."""
        for name, key in self.site_keys.items():
            with suppress(FeddrmError):
                verify(signed, key, name)
                return name
        return None

    def verified(self, signed: bytes | Refusal, request: bytes, name: str) -> Message | None:
        """The reply, if ``name`` signed it, it answers this very request, and it reports no error."""
        try:
            if isinstance(signed, Refusal):
                raise FeddrmError(signed.reason)
            reply = unpack(verify(signed, self.site_keys[name], name))
            if reply.header.get("answers") != digest(request):
                raise FeddrmError("it answered another message: it is left out")
            if "error" in reply.header:
                raise FeddrmError(str(reply.header["error"]))
        except FeddrmError as error:
            self._refuse(name, f"{name}: ", str(error))
            return None
        return reply

    def checked(self, name: str, reply: Message, check: Check) -> Message | None:
        """The usable part of a verified reply, None if ``check`` refuses it."""
        try:
            return check(name, reply)
        except FeddrmError as error:
            self._refuse(name, f"{name} is left out, its answer cannot be used: ", str(error))
            return None

    def missing(self, names: Iterable[str]) -> str:
        """The sites without a usable reply to the last request, each with the reason if it is known."""
        missing = [name for name in names if name in self.site_keys and name not in self.bytes_sent]
        reasons = {**self.absences, **self.refusals}
        return ", ".join(f"{name} ({reasons[name]})" if name in reasons else name for name in missing)

    def tell_of_stall(self, waiting: Mapping[str, float]) -> None:
        """Tell the sites that are there whom the server waits for and since when, once that lasts; they show it."""
        stalled = {name: since for name, since in waiting.items() if time.time() - since >= STALL_SECONDS}
        if set(stalled) == self._told:
            return
        self._told = set(stalled)
        notices = {
            node: sign(pack({"kind": "waiting", "to": name, "for": stalled}), self.key)
            for name, node in self.nodes.items()
            if name not in waiting
        }
        if notices:
            self.transport.ask(notices, TELL_SECONDS, "query", lambda _: None)

    def _exchange(
        self, messages: Mapping[int, bytes], deadline: float, kind: str, names: Mapping[int, str] | None = None
    ) -> Mapping[int, bytes | Refusal]:
        """Signed replies and refusals by node. Meanwhile those of ``names`` that have not replied are reported."""
        if not messages:
            return {}

        def on_wait(nodes: set[int]) -> None:
            if names is not None:
                self.tell_of_stall(self.attendance.waiting_for(names[node] for node in nodes))

        signed = {node: sign(content, self.key) for node, content in messages.items()}
        return self.transport.ask(signed, deadline, kind, on_wait)

    def _refuse(self, name: str, prefix: str, reason: str) -> None:
        self.refusals[name] = printable_line(reason)
        self.on_event("complaint", {"text": prefix + self.refusals[name]})
