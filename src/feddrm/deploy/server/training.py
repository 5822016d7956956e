"""Rounds over the channel: ask the sites, check their uploads, aggregate them. And the state between two rounds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feddrm.deploy.privacy import Privacy
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.reply_validation import blank_upload, check_update
from feddrm.deploy.wire.channel import REMOVED_MEMBER, Channel
from feddrm.deploy.wire.messages import Message, pack, unpack
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import RoundSchedule, first_state
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.tensors import tensor_bytes
from feddrm.methods import Tensors

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's checkpoint: shared leaves, the last accepted round of every site, the metrics of all rounds."""

    round: int
    shared: Tensors
    accepted: Mapping[str, int]
    history: tuple[Mapping[str, Any], ...] = ()

    def save(self, path: Path) -> None:
        header = {"round": self.round, "accepted": dict(self.accepted), "history": list(self.history)}
        write_atomically(path, pack(header, self.shared))

    @classmethod
    def load(cls, path: Path) -> ServerState:
        header, shared = unpack(path.read_bytes())
        return cls(header["round"], shared, header["accepted"], tuple(header["history"]))


class Training:
    """Plays the rounds of one run; the state is passed in and out."""

    def __init__(self, settings: FederationSettings, spec: RunSpec, channel: Channel) -> None:
        self.settings, self.spec, self.channel = settings, spec, channel
        self.method = spec.make_method()
        self.schedule = RoundSchedule(self.method, spec.make_plan(), len(spec.names))
        self._upload_forms: dict[bool, Tensors] = {}  # by whether the round is one of tuning

    def initial_state(self) -> ServerState:
        leaves = {leaf: value.detach() for leaf, value in self.spec.make_net().named_parameters()}
        return ServerState(0, first_state(self.method, leaves, 1).shared, dict.fromkeys(self.spec.names, 0))

    def next_round(self, state: ServerState) -> ServerState | None:
        """Play one round with the sites that answer in time; None if they are fewer than the quorum."""
        number, began = state.round + 1, time.perf_counter()
        drawn = [self.spec.names[i] for i in self.schedule.answering(number)]
        asked = [name for name in drawn if name in self.channel.site_keys]  # a removed site is not asked any more
        self.channel.on_event("round started", {"round": number, "asked": asked})
        replies = self._ask(state, asked) if asked else {}
        if asked and len(replies) < min(self.settings.quorum, len(asked)):
            return None
        answered = [name for name in self.spec.names if name in replies]  # in the order of the clients' numbers
        shared, loss = self._aggregate(state, [self.spec.names.index(name) for name in answered], replies)
        entry: dict[str, Any] = {
            "round": number,
            "lr": self.schedule.plan.rate(number),
            "loss": loss,
            "asked": asked,
            "answered": answered,
            "missing": {n: self.channel.absences.get(n, REMOVED_MEMBER) for n in drawn if n not in replies},
            "seconds": time.perf_counter() - began,
            "site_seconds": max((replies[name].header["seconds"] for name in answered), default=0.0),
            "bytes_sent": dict(self.channel.bytes_sent),
            "bytes_received": dict(self.channel.bytes_received),
            **accuracy(replies, "accuracy_before"),
        }
        if self.spec.privacy is not None:
            privacy = Privacy(**self.spec.privacy)
            entry["epsilon"] = {name: privacy.epsilon(replies[name].header["uploads"]) for name in answered}
        accepted = {**state.accepted, **dict.fromkeys(answered, number)}
        return ServerState(number, shared, accepted, (*state.history, entry))

    def _ask(self, state: ServerState, names: Sequence[str]) -> dict[str, Message]:
        number = state.round + 1
        tuning = self.schedule.stage(number).tuning
        if tuning not in self._upload_forms:
            self._upload_forms[tuning] = blank_upload(self.spec, self.schedule, state.shared, number)
        header = {"kind": "train", "brief": self.spec.as_dict(), "round": number}
        requests = {
            name: (
                {**header, "after": state.accepted[name]},
                self.method.send(state.shared, self.spec.names.index(name)),
            )
            for name in names
        }

        def check(name: str, reply: Message) -> Message:
            return check_update(reply, self._upload_forms[tuning], requests[name][1], self.spec.privacy is not None)

        return self.channel.ask(requests, self.settings.deadline, check)

    def _aggregate(
        self, state: ServerState, numbers: Sequence[int], replies: Mapping[str, Message]
    ) -> tuple[Tensors, float | None]:
        """The new shared leaves, and the mean training loss if every site sent one."""
        if not numbers:
            return state.shared, None
        messages = [replies[self.spec.names[i]] for i in numbers]
        sizes = torch.tensor([self.spec.sizes[i] for i in numbers]).double()
        weights = sizes / sizes.sum()
        shared = self.method.aggregate(state.shared, [message.tensors for message in messages], weights)
        if not all(bool(value.isfinite().all()) for value in shared.values()):
            raise FeddrmError(
                f"round {state.round + 1} ends in a model that is not finite: lower lr, choose another run"
            )
        losses = [message.header.get("loss") for message in messages]
        loss = None if None in losses else float(weights @ torch.tensor(losses, dtype=torch.float64))
        return shared, loss


def round_record(state: ServerState) -> dict[str, Any]:
    """What the audit trail keeps of the last round: who took part, who did not and why, the hash of the aggregate."""
    entry = state.history[-1]
    return {
        **{key: entry[key] for key in ("round", "asked", "answered", "missing")},
        "aggregate": hashlib.sha256(tensor_bytes(state.shared)).hexdigest(),
    }


def accuracy(replies: Mapping[str, Message], name: str) -> dict[str, float]:
    """The share of right answers over the test samples of all sites, as ``name``; empty if no site sent counts."""
    tested = sum(reply.header.get("tested", 0) for reply in replies.values())
    return {name: sum(reply.header.get("right", 0) for reply in replies.values()) / tested} if tested else {}
