"""The server's correspondence: which node is which site, and what they answer, if it can be believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from feddrm.deploy.wire.messages import ANYBODY, Message, digest, opened, pack, seal, unpack
from feddrm.errors import FeddrmError

HELLO_SECONDS = 60.0
LINE = 400  # characters of a site's complaint

Say = Callable[[str, Mapping[str, Any]], None]  # what happens, for whoever watches
Check = Callable[[str, Message], Message]  # what may be used of a site's answer; refuses what may not
Question = tuple[Mapping[str, Any], Mapping[str, Tensor]]


class Transport(Protocol):
    """Whoever carries letters to nodes and brings back answers: Flower, or a test."""

    def nodes(self) -> set[int]:
        """Who can be reached now."""

    def ask(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        """Answers of those who gave one within ``deadline`` seconds."""


class Post:
    """Letters to sites by name, signed; answers that the site has signed, to the very letter they answer."""

    def __init__(
        self,
        courier: Transport,
        key: ec.EllipticCurvePrivateKey,
        site_keys: Mapping[str, ec.EllipticCurvePublicKey],
        say: Say,
    ) -> None:
        self.courier, self.key, self.site_keys, self.say = courier, key, dict(site_keys), say
        self.at: dict[str, int] = {}  # the node of every site that has said its name
        self.strangers: set[int] = set()
        self.sent: dict[str, int] = {}  # bytes of the last letter to every site that answered it
        self.got: dict[str, int] = {}
        self.refused: dict[str, str] = {}  # why the last answer of a site cannot be used

    def ask(self, letters: Mapping[str, Question], deadline: float, check: Check) -> dict[str, Message]:
        """Answers by name, of those who can be reached, answered in time, and had nothing to complain of.

        An answer that ``check`` refuses is complained of, and is none.
        """
        self.meet()
        self.sent, self.got, self.refused = {}, {}, {}
        packed = {n: pack({**header, "to": n}, tensors) for n, (header, tensors) in letters.items() if n in self.at}
        kind = "train" if any(header["kind"] == "train" for header, _ in letters.values()) else "query"
        found: dict[str, Message] = {}
        for node, content in self._carry({self.at[n]: packed[n] for n in packed}, deadline, kind).items():
            name = next(n for n in packed if self.at[n] == node)
            letter = self.believe(content, packed[name], name)
            if letter is not None and (usable := self.usable(name, letter, check)) is not None:
                found[name] = usable
                self.sent[name], self.got[name] = len(packed[name]), len(content)
        return found

    def usable(self, name: str, letter: Message, check: Check) -> Message | None:
        """What may be used of a believed answer."""
        try:
            return check(name, letter)
        except FeddrmError as error:
            self._refuse(name, f"{name} is left out, its answer cannot be used: ", str(error))
            return None

    def meet(self) -> dict[str, Message]:
        """Learn which of the reachable nodes are which sites; what new ones say of what they hold, by name.

        Whoever cannot sign as one of the names is a stranger, whatever he says.
        """
        here = self.courier.nodes()
        self.at = {name: node for name, node in self.at.items() if node in here}
        self.strangers &= here
        unknown = here - set(self.at.values()) - self.strangers
        hello = pack({"kind": "hello", "to": ANYBODY})
        found: dict[str, Message] = {}
        for node, content in self._carry(dict.fromkeys(unknown, hello), HELLO_SECONDS, "query").items():
            for name in self.site_keys:
                letter = self.believe(content, hello, name, quiet=True)
                if letter is not None:
                    found[name], self.at[name] = letter, node
                    break
            else:
                self.strangers.add(node)
                self.say("complaint", {"text": f"node {node} has none of this federation's keys: it is ignored"})
        return found

    def _carry(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        if not letters:
            return {}
        return self.courier.ask({node: seal(letter, self.key) for node, letter in letters.items()}, deadline, kind)

    def believe(self, sealed: bytes, question: bytes, name: str, quiet: bool = False) -> Message | None:
        """The answer, if ``name`` signed it, it answers this very question, and it is no complaint."""
        try:
            letter = unpack(opened(sealed, self.site_keys[name], name))
            if letter.header.get("answers") != digest(question):
                raise FeddrmError("it answered another letter: it is left out")
            if "error" in letter.header:
                raise FeddrmError(str(letter.header["error"]))
        except FeddrmError as error:
            if not quiet:
                self._refuse(name, f"{name}: ", str(error))
            return None
        return letter

    def _refuse(self, name: str, before: str, reason: str) -> None:
        """A site's answer is none: that is complained of, and remembered for those who wait for it."""
        self.refused[name] = one_line(reason)
        self.say("complaint", {"text": before + self.refused[name]})


def one_line(text: str) -> str:
    """What a site says, fit for a log and a terminal: not long, and what would command the terminal is spelled out."""
    spelled = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
    return "".join(spelled)[:LINE]
