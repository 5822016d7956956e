"""The server's half of secure aggregation: it relays the sites' mask keys and adds their masked replies.

Masks cancel in the sum over exactly the sites whose keys a question carried. One reply is a row of random numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddrm.deploy.server.reply_validation import check_header, check_tensors
from feddrm.deploy.wire.channel import Channel, Request
from feddrm.deploy.wire.fixed_point import count_words, decode
from feddrm.deploy.wire.masks import MASKED
from feddrm.deploy.wire.messages import Message
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.methods import Tensors

KEY_SECONDS = 60.0  # in which a site must send its mask key


class MaskedSums:
    """Questions of one run whose answers are sums over sites."""

    def __init__(self, channel: Channel, spec: RunSpec, deadline: float) -> None:
        self.channel, self.spec, self.deadline = channel, spec, deadline
        self.missing: list[str] = []  # without a key, or without a reply, when the server asked last
        self._keys: dict[str, tuple[int, dict[str, str]]] = {}  # by site: its node and its signed mask key
        self._sent: dict[str, tuple[int, tuple[str, ...]]] = {}  # by site: its last masked round, and for which sites

    def ready(self, names: Iterable[str], accepted: Mapping[str, int]) -> list[str]:
        """Those of the sites that are there and whose mask keys are known; the others are asked for theirs."""
        names = list(names)
        self.channel.discover()
        self._keys = {name: kept for name, kept in self._keys.items() if self.channel.nodes.get(name) == kept[0]}
        if unknown := [name for name in names if name not in self._keys]:
            header = {"kind": "mask key", "brief": self.spec.as_dict()}
            requests: dict[str, Request] = {name: ({**header, "after": accepted[name]}, {}) for name in unknown}
            replies = self.channel.ask(requests, min(self.deadline, KEY_SECONDS), _check_key)
            for name, reply in replies.items():
                self._keys[name] = self.channel.nodes[name], reply.header["mask_key"]
                self._sent[name] = reply.header["sent_round"], tuple(reply.header["sent_for"])
        self.missing = [name for name in names if name not in self._keys]
        return [name for name in names if name in self._keys]

    def begun(self, round: int) -> set[tuple[str, ...]]:
        """The sets of sites for which some site has sent its part of this round."""
        return {names for number, names in self._sent.values() if number == round}

    def ask(
        self,
        requests: Mapping[str, Request],
        form: Mapping[str, Tensor],
        fields: Sequence[str] = (),
        weight: float = 1.0,
    ) -> tuple[dict[str, dict[str, Any]], Tensors] | None:
        """The checked ``fields`` of all replies by site, and the sum of their tensors, which have this ``form``,
        floats divided by ``weight``.

        None if one site has not answered: then the server has learnt nothing.
        """
        masks = {"nonce": secrets.token_hex(16), "keys": {name: self._keys[name][1] for name in requests}}
        words = {MASKED: torch.empty(count_words(form), dtype=torch.int64)}
        if round := next(iter(requests.values()))[0].get("round"):
            self._sent |= dict.fromkeys(requests, (round, tuple(sorted(requests))))

        def check(_: str, reply: Message) -> Message:
            check_tensors(reply.tensors, words)
            return Message(check_header(reply.header, *fields), reply.tensors)

        masked = {name: ({**header, "masks": masks}, tensors) for name, (header, tensors) in requests.items()}
        replies = self.channel.ask(masked, self.deadline, check)
        self.missing = [name for name in requests if name not in replies]
        for name in self.missing:  # it may have started again: then it has another key
            self._keys.pop(name, None)
        if self.missing:
            return None
        total = np.zeros(len(words[MASKED]), np.uint64)
        for reply in replies.values():
            total += reply.tensors[MASKED].numpy().view(np.uint64)
        return {name: replies[name].header for name in requests}, decode(total, form, weight)


def _check_key(_: str, reply: Message) -> Message:
    return Message(check_header(reply.header, "mask_key", "sent_round", "sent_for"), {})
